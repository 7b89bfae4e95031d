"""HTTP/1.1 on asyncio protocols, for the path of every token.

Parsing is httptools' (llhttp). What arrives in one read is handed on in one call and sent on in one write, with no task
woken between: aiohttp's streams cost twice as much for each token.
"""
