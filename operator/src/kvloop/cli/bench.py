"""`kvloop bench`: what reuse is worth, measured from where clients are."""

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from kvloop.cli import measure
from kvloop.cli.exits import NO, errors, fail, results
from kvloop.cli.load import Client, LoadError, Turn, Workload
from kvloop.cli.progress import progress

END_OF_CONVERSATION: Final = {"X-Conversation-End": "true"}
"""With it kvloop's router keeps nothing for the next turn, which is then computed, as if there was no reuse."""
OFF: Final = "off"


class Output(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"


@dataclass
class Arm:
    """One of the endpoints, or ways to use one, that are compared, and what came of it."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Counts, and times of what the table leaves out."""
        first = [turn for turn in self.turns if not turn.number]
        tasks = [sum(turn.total_s for turn in self.turns if turn.conversation == one.conversation) for one in first]
        times = measure.Times.of(first) if first else None
        return {
            "url": self.url,
            "turns": len(self.turns),
            "failedConversations": len(self.failures),
            "firstTurns": {"p50Ms": round(times.p50_ms, 1), "p95Ms": round(times.p95_ms, 1)} if times else None,
            "conversationSeconds": round(median(tasks), 3) if tasks else None,
        }


Url = Annotated[str, typer.Option(metavar="URL", help="Endpoint of OpenAI's API, such as http://localhost:8000.")]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="URL|off",
        help="What to compare with, at the same time: another endpoint, or off for the same one without reuse, by a"
        " header with which kvloop's router keeps nothing for the next turn.",
    ),
]
Model = Annotated[str | None, typer.Option(help="Model to ask for; by default the first one served.")]
Prefix = Annotated[
    list[int] | None,
    typer.Option(
        min=1, metavar="TOKENS", help="Length of system prompts; may be repeated. By default 2000, 8000 and 16000."
    ),
]
Conversations = Annotated[int, typer.Option(min=1, help="Conversations of each arm; they take the lengths in turn.")]
Turns = Annotated[int, typer.Option(min=2, help="Turns of each conversation.")]
Clients = Annotated[int, typer.Option(min=1, help="Requests under way at a time, of each arm.")]
UserTokens = Annotated[int, typer.Option(min=1, help="Length of a user message.")]
ReplyTokens = Annotated[int, typer.Option(min=1, help="Limit of a reply.")]
Pause = Annotated[float, typer.Option(min=0, help="Seconds from a reply to the next turn.")]
Seed = Annotated[str | None, typer.Option(help="To ask the same texts again; by default they are in no cache yet.")]
ApiKeyEnv = Annotated[str, typer.Option(metavar="NAME", help="Environment variable with the API key.")]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder for turns.csv, summary.json and plots as PNG files.")
]


def bench(  # noqa: PLR0913 (each is an option of the command)
    *,
    url: Url,
    against: Against = None,
    model: Model = None,
    prefix: Prefix = None,
    conversations: Conversations = 12,
    turns: Turns = 5,
    clients: Clients = 2,
    user_tokens: UserTokens = 150,
    reply_tokens: ReplyTokens = 100,
    pause: Pause = 0,
    seed: Seed = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
    out: Out = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="Print as.")] = Output.TABLE,
) -> None:
    """Hold conversations of many turns with an endpoint, and measure the time to the first token.

    Each conversation has a system prompt of its own, and every turn sends the whole history, as agents do; any endpoint
    of OpenAI's chat API will do. Follow-ups of equal length are compared. A Service of a cluster is reached by
    `kubectl port-forward service/NAME 8000`, which adds to the times.

    Exit codes: 0 all turns were answered; 1 some were not; 2 the endpoint cannot be used, or a file cannot be written.
    """
    workload = Workload(
        conversations, turns, clients, tuple(prefix or (2000, 8000, 16_000)), user_tokens, reply_tokens, pause,
        seed or uuid.uuid4().hex[:8],
    )  # fmt: skip
    arms = _arms(url, against, os.environ.get(api_key_env, ""))
    try:
        with progress("turns", len(arms) * conversations * turns) as advance:
            asked = asyncio.run(_run(arms, workload, model, advance))
        told = _summary(arms, workload, asked)
        files = _write(out, arms, told) if out else []
    except LoadError as error:
        raise fail(str(error)) from error
    except OSError as error:
        raise fail(f"cannot write {error.filename}: {error.strerror}") from error
    _print(arms, told, files, output)
    if failures := [failure for arm in arms for failure in arm.failures]:
        errors.print(f"{len(failures)} conversations ended early; the first: {failures[0]}", style="red")
        raise typer.Exit(NO)


def _print(arms: Sequence[Arm], told: dict[str, Any], files: Sequence[Path], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps(told, indent=2))
        return
    title = f"Time to the first token of follow-ups, {told['model']}"
    results().print(measure.table({arm.name: arm.turns for arm in arms}, title=title))
    for path in files:
        typer.echo(path)


def _arms(url: str, against: str | None, key: str) -> list[Arm]:
    """What is compared with comes first."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if against == OFF:
        return [Arm(OFF, url, headers | END_OF_CONVERSATION), Arm("on", url, headers)]
    if against:
        names = [urlsplit(each).netloc or each for each in (against, url)]
        first, second = names if names[0] != names[1] else (against, url)
        if first == second:
            raise fail("--against names the same endpoint: use `--against off` to compare it with itself")
        return [Arm(first, against, headers), Arm(second, url, headers)]
    return [Arm("all", url, headers)]


async def _run(arms: Sequence[Arm], workload: Workload, model: str | None, advance: Callable[[], None]) -> str:
    """All arms at the same time; gives the model that was asked."""
    if model is None:
        async with Client(arms[-1].url, "", headers=arms[-1].headers) as client:
            model = next(iter(await client.models()), None)
        if model is None:
            raise LoadError(f"{arms[-1].url} serves no model: give --model")
    await asyncio.gather(*(_arm(arm, workload, model, advance) for arm in arms))
    return model


async def _arm(arm: Arm, workload: Workload, model: str, advance: Callable[[], None]) -> None:
    # Texts of its own: what one arm has asked must be in no cache of another's.
    own = replace(workload, seed=f"{workload.seed} {arm.name} ")
    async with Client(arm.url, model, headers=arm.headers) as client:
        arm.turns = await client.run(own, advance, lambda error: arm.failures.append(str(error)))


def _summary(arms: Sequence[Arm], workload: Workload, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "workload": asdict(workload),
        "arms": {arm.name: arm.summary() for arm in arms},
        "followUps": [
            {
                "systemTokens": row.system_tokens,
                "promptTokens": round(row.prompt_tokens),
                "arms": {
                    name: {"turns": times.turns, "p50Ms": round(times.p50_ms, 1), "p95Ms": round(times.p95_ms, 1)}
                    for name, times in row.arms.items()
                },
                "faster": round(row.faster, 2) if row.faster else None,
            }
            for row in measure.rows({arm.name: arm.turns for arm in arms})
        ],
    }


def _write(folder: Path, arms: Sequence[Arm], summary: dict[str, Any]) -> list[Path]:
    from kvloop.cli import plots  # noqa: PLC0415 (a second of imports, for those alone who want plots)

    folder.mkdir(parents=True, exist_ok=True)
    turns = {arm.name: arm.turns for arm in arms}
    files = {"turns.csv": measure.as_csv(turns), "summary.json": json.dumps(summary, indent=2) + "\n"}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*(folder / name for name in files), *plots.write(folder, turns)]
