"""``python -m tinker``."""

from tinker.cli import main as cli

if __name__ == "__main__":
    cli(prog_name="tinker")
