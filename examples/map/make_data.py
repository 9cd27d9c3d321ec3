"""Makes 60 short recordings in `FOLDER/wav`: tones, and one file that is damaged."""

import math
import random
import struct
import sys
import wave
from pathlib import Path

RATE = 8_000


def tone(hertz: float, seconds: float) -> bytes:
    samples = (int(20_000 * math.sin(2 * math.pi * hertz * at / RATE)) for at in range(int(RATE * seconds)))
    return b"".join(struct.pack("<h", sample) for sample in samples)


def main() -> None:
    folder = Path(sys.argv[1]) / "wav"
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for number in range(60):
        with wave.open(str(folder / f"{number:03}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", "not compressed"))
            file.writeframes(tone(draw.uniform(200, 2_000), draw.uniform(0.2, 1.0)))
    (folder / "017.wav").write_bytes(b"this is no recording")


if __name__ == "__main__":
    main()
