"""What kind of device a probe is to use."""

from __future__ import annotations

import argparse

CPU, CUDA, AUTO = "cpu", "cuda", "auto"


def add_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=(AUTO, CUDA, CPU), default=AUTO)
