"""What vLLM's own command line makes of arguments. Run with the Python of the engine's environment.

Reads ``{"name": ["model", "--flag", ...]}`` from standard input, writes JSON: for each name what vLLM understood or
why it refused, all options of ``vllm serve``, and the connector options that its NIXL connector reads.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import nixl
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser


def serve_parser() -> tuple[Any, Any, Any]:
    """The whole command line, its command ``serve``, and that command's parser."""
    parser = FlexibleArgumentParser(prog="vllm")
    (command,) = cmd_init()
    serve = command.subparser_init(parser.add_subparsers(dest="subparser"))
    return parser, command, serve


def understand(parser: Any, command: Any, arguments: list[str]) -> dict[str, Any]:
    """What the config classes hold, or `error`."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            args = parser.parse_args(["serve", *arguments])
            args.model = args.model_tag or args.model
            command.validate(args)
            engine = AsyncEngineArgs.from_cli_args(args)
            transfer, load = engine.kv_transfer_config, engine.create_load_config()
    except SystemExit:
        return {"error": output.getvalue()[-2000:]}
    except Exception as error:  # noqa: BLE001 - whatever vLLM raises is the finding
        return {"error": f"{type(error).__name__}: {error}"}
    fields = ("model", "served_model_name", "max_model_len", "dtype", "kv_cache_dtype", "block_size", "revision")
    return {
        **{name: getattr(engine, name) for name in fields},
        "tensor_parallel_size": engine.tensor_parallel_size,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "shutdown_timeout": engine.shutdown_timeout,
        "host": args.host,
        "port": args.port,
        "load_format": str(load.load_format),
        "model_loader_extra_config": load.model_loader_extra_config,
        "transfer": {field.name: getattr(transfer, field.name) for field in dataclasses.fields(transfer)},
    }


def options(serve: argparse.ArgumentParser) -> list[list[str]]:
    """Spellings of each option."""
    return [list(action.option_strings) for action in serve._actions if action.option_strings]  # noqa: SLF001 (no other way)


def connector_options() -> list[str]:
    source = "".join(path.read_text() for path in Path(nixl.__path__[0]).glob("*.py"))
    return re.findall(r'get_from_extra_config\(\s*"(\w+)"', source)


def main() -> None:
    lines = json.load(sys.stdin)
    parser, command, serve = serve_parser()
    answer = {
        "lines": {name: understand(parser, command, arguments) for name, arguments in lines.items()},
        "options": options(serve),
        "connector_options": sorted(set(connector_options())),
    }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
