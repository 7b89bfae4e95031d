"""What the images package raises."""


class ImageError(RuntimeError):
    """Something the user can act on; the message says what to do, and the command line shows it without a traceback."""
