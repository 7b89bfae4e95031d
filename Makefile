VENV := .venv
BIN  := $(VENV)/bin

.PHONY: venv
venv: $(VENV)/.ready  ## Make the Python environment in .venv

$(VENV)/.ready: pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[dev]'
	touch $@
