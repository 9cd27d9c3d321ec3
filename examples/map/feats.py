"""Features of one recording: `feats.py FILE FOLDER` writes FOLDER/NAME.json, whole or not at all.

Frames of 25 ms, 10 ms apart, as recognizers of speech have them; of each its energy, and how often the sign
of the signal changes, which tells its pitch.
"""

import json
import math
import struct
import sys
import wave
from pathlib import Path


def features(samples: tuple[int, ...], rate: int) -> list[dict[str, float]]:
    length, step = rate // 40, rate // 100
    frames = (samples[start : start + length] for start in range(0, len(samples) - length + 1, step))
    return [
        {
            "energy": round(math.log(1 + sum(sample * sample for sample in frame) / length), 3),
            "crossings": sum((left < 0) != (right < 0) for left, right in zip(frame, frame[1:])),  # noqa: B905, RUF007
        }
        for frame in frames
    ]


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    with wave.open(str(source)) as file:
        data, rate = file.readframes(file.getnframes()), file.getframerate()
    samples = struct.unpack(f"<{len(data) // 2}h", data)
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{source.stem}"
    draft.write_text(json.dumps(features(samples, rate)))
    draft.replace(folder / f"{source.stem}.json")


if __name__ == "__main__":
    main()
