# What CI runs, one target each. Activate an environment with `--group dev --group docs` first (CONTRIBUTING.md).
.PHONY: lint format quick test docs bench ci

lint:  ## style and types: about a minute
	.ci/lint

format:  ## rewrite Python and C++ in the project's style
	ruff check --fix .
	ruff format .
	find src tests examples -name '*.cpp' -o -name '*.hpp' | xargs clang-format -i

quick:  ## tests of up to about two seconds
	pytest -m "not slow"

test:  ## all tests
	pytest

docs:  ## the site, into site/
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

bench:  ## speed and memory of the engines on this machine
	selfish-rnn bench --hidden 512

ci:  ## everything above but bench, in a fresh environment
	.ci/run
