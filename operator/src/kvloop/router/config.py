"""The configuration file."""

from pathlib import Path

import yaml

from kvloop.api.contract import ContractError, RouterConfig, parse


def load(path: Path) -> RouterConfig:
    """Read and check the file; raises `ContractError`, whose message names the file and every wrong field."""
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ContractError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ContractError(f"{path} is no valid YAML: {error}") from error
    except RecursionError as error:
        raise ContractError(f"{path} is nested too deeply") from error
    return parse(data, str(path))
