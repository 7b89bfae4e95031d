"""The command line `kvloop`, which kubectl also finds as its plugin `kubectl kvloop`."""

from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS: Final = {
    "status": "Show what is true of custom resources: conditions, rollout, reuse, first tokens.",
    "check": "Check a cluster and a resource: before it is applied, and, once it runs, end to end.",
    "diff": "Show what applying custom resources would change, and which pods would restart.",
    "bundle": "Gather a support archive, without secrets, keys and prompts.",
    "bench": "Hold conversations of many turns with an endpoint, and measure the time to the first token.",
    "advise": "Advise TTL, recompute threshold, holdout, and whether to reuse at all, from a log or a trace.",
    "simulate": "Replay a log or a trace over a grid of TTLs and thresholds, on a calculated system.",
    "render": "Print the Kubernetes objects that the operator would make of custom resources.",
    "crd": "Print the CustomResourceDefinition, for `kubectl apply --server-side -f -`.",
    "plugin": "Write the vLLM plugin into a folder, to run engines without Kubernetes.",
    "version": "Print the version.",
}
"""What each command does, by name. It is the function of that name in the module `kvloop.cli.<name>`."""


def command(name: str) -> Any:
    """The command of that name, imported now."""
    app = typer.Typer(add_completion=False)
    app.command(name)(getattr(import_module(f"kvloop.cli.{name}"), name))
    return typer.main.get_command(app)


class Commands(TyperGroup):
    """Imports a command when it is called, so that `kvloop version` does not wait for the Kubernetes client."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(
            **attributes | {"commands": {name: TyperCommand(name, help=COMMANDS[name]) for name in COMMANDS}}
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is to run; until then only its help in one line is known."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, command(str(name)), rest


app = typer.Typer(
    name="kvloop",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def main_help() -> None:
    """Return the KV cache of LLM conversations from vLLM decode engines to prefill engines."""


def main() -> None:
    """Entry point of `kvloop` and `kubectl-kvloop`."""
    app()
