"""Remove noise from speech with a causal GRU, as RNNoise does: energies of bands in, gains of bands out.

The signals are synthesized: syllables with pitch and formants, fricatives and pauses; coloured noise, hum and clicks. A
dense network and Selfish ones with a third and a tenth of its recurrent weights (single weights, or blocks of 8x4) are
trained, each in less than a minute, and streamed in float32 and int8. The table shows the gain in signal-to-noise ratio
on new signals, the existing weights, the size of the file, and the time of one step from Python (a frame is 16 ms of
sound). `--out denoiser` keeps the files and sounds in a folder, for the C program in c/denoiser.c. Expected output:

    network                             SNR gain     file  time of a frame
    dense               178,176 weights    6.20 dB   722,320     7.1 µs
    dense-int8          178,176 weights    6.20 dB   216,413     3.8 µs
    selfish-0.67         62,915 weights    6.18 dB   283,284     7.2 µs
    selfish-0.67-int8    62,915 weights    6.18 dB    95,651     4.1 µs
    blocks-0.67          62,912 weights    6.15 dB   283,272     7.2 µs
    blocks-0.67-int8     62,912 weights    6.15 dB    95,652     3.7 µs
    selfish-0.9          23,347 weights    5.99 dB   124,996     4.4 µs
    selfish-0.9-int8     23,347 weights    5.99 dB    60,971     3.7 µs
    blocks-0.9           23,360 weights    5.94 dB   125,040     4.2 µs
    blocks-0.9-int8      23,360 weights    5.94 dB    61,227     3.7 µs
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import selfish_rnn

Floats = npt.NDArray[np.float64]

RATE = 16_000
WINDOW, HOP = 512, 256
BANDS = 24
SHAPE = np.sin(np.pi * (np.arange(WINDOW) + 0.5) / WINDOW)
"""Window before and after the spectrum; overlapping squares of it add up to one."""


def _band_weights() -> Floats:
    """Return triangular bands (bands x bins), equally wide on the mel scale, that add up to one everywhere."""
    mel = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), BANDS)
    centres = 700 * (10 ** (mel / 2595) - 1) * WINDOW / RATE
    bins = np.arange(WINDOW // 2 + 1)
    return np.stack([np.interp(bins, centres, row) for row in np.eye(BANDS)])


BAND_WEIGHTS = _band_weights()


# Signals


def speech(seconds: float, rng: np.random.Generator) -> Floats:
    """Return syllables: voiced ones with moving pitch and formants, fricatives, and pauses."""
    count = round(seconds * RATE)
    pitch, loudness, voiced = np.zeros(count), np.zeros(count), np.zeros(count)
    frames = count // HOP + 2
    formants = np.zeros((frames, 4))
    at, base, target = 0, rng.uniform(85, 230), rng.uniform([300, 900, 2300, 3400], [800, 2200, 3100, 4200])
    while at < count:
        length = int(rng.uniform(0.08, 0.25) * RATE)
        end, kind = min(at + length, count), rng.random()
        here, before = slice(at, end), target
        target = rng.uniform([300, 900, 2300, 3400], [800, 2200, 3100, 4200])
        part = np.arange(end - at) / length
        pitch[here] = base * np.exp(rng.normal(0, 0.08) + rng.normal(0, 0.15) * part)
        voiced[here] = kind < 0.65
        loud = 0.0 if kind > 0.82 else rng.uniform(0.4, 1.0) * (1.0 if kind < 0.65 else 0.25)
        loudness[here] = loud * np.sin(np.pi * part) ** 0.5
        rows = slice(at // HOP, end // HOP + 1)
        formants[rows] = before + (target - before) * np.linspace(0, 1, rows.stop - rows.start)[:, None]
        at = end
    # A sawtooth or noise, shaped by the resonances of each frame.
    phase = np.cumsum(pitch) / RATE
    source = np.where(voiced > 0, phase % 1 - 0.5, rng.normal(0, 0.3, count)) * loudness
    spectra, shaped = np.fft.rfft(frames_of(source)), []
    frequency = np.fft.rfftfreq(WINDOW, 1 / RATE)
    for spectrum, peaks, is_voiced in zip(spectra, formants, voiced[::HOP], strict=False):
        if is_voiced:
            widths, heights = np.array([80, 120, 180, 250]), np.array([1.0, 0.6, 0.35, 0.2])
            gains = sum(h / (1 + ((frequency - f) / w) ** 2) for f, w, h in zip(peaks, widths, heights, strict=True))
        else:
            gains = 1 / (1 + np.exp(-(frequency - peaks[2]) / 400))
        shaped.append(spectrum * gains)
    sound = overlap_add(np.fft.irfft(np.array(shaped), WINDOW))[:count]
    return sound / (np.sqrt(np.mean(sound**2)) + 1e-9)


def noise(seconds: float, rng: np.random.Generator) -> Floats:
    """Return coloured noise whose loudness drifts, at times with hum and clicks."""
    count = round(seconds * RATE)
    spectrum = np.fft.rfft(rng.normal(size=count))
    frequency = np.fft.rfftfreq(count, 1 / RATE) + 20
    ripple = np.interp(np.log(frequency), np.linspace(3, 9, 12), rng.normal(0, 0.7, 12))
    sound = np.fft.irfft(spectrum * frequency ** -rng.uniform(0, 1.1) * np.exp(ripple), count)
    sound *= np.exp(np.interp(np.arange(count), np.linspace(0, count, 8), rng.normal(0, 0.35, 8)))
    sound /= np.sqrt(np.mean(sound**2))
    seconds_axis = np.arange(count) / RATE
    if rng.random() < 0.3:
        hum = rng.choice([50, 60, 100, 120])
        sound += sum(
            rng.uniform(0, 0.5) * np.sin(2 * np.pi * hum * k * seconds_axis + rng.uniform(0, 6)) for k in range(1, 8)
        )
    if rng.random() < 0.3:
        for at in rng.integers(0, count - 400, rng.integers(1, 8)):
            sound[at : at + 400] += rng.normal(0, 3, 400) * np.exp(-np.arange(400) / 80)
    return sound / np.sqrt(np.mean(sound**2))


def mixture(seconds: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return speech, and the same in noise at -5 to 15 dB; both scaled alike."""
    clean = speech(seconds, rng)
    noisy = clean + noise(seconds, rng) * 10 ** (-rng.uniform(-5, 15) / 20)
    scale = rng.uniform(0.02, 0.15) / np.abs(noisy).mean() / 3
    return clean * scale, noisy * scale


# Frames, bands and back


def frames_of(sound: Floats) -> Floats:
    """Return windowed frames (frames x window); the first one ends with the first hop of the sound."""
    padded = np.concatenate([np.zeros(WINDOW - HOP), sound, np.zeros(WINDOW + HOP - len(sound) % HOP)])
    return np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP] * SHAPE


def overlap_add(frames: Floats) -> Floats:
    """Return the sound of frames, one window minus one hop late, as :func:`frames_of` padded it."""
    frames = frames * SHAPE
    sound = np.zeros(HOP * (len(frames) + 1))
    for at, frame in enumerate(frames):
        sound[at * HOP : at * HOP + WINDOW] += frame
    return sound[WINDOW - HOP :]


def energies(spectra: npt.NDArray[np.complex128]) -> Floats:
    """Return the energy of every band."""
    result: Floats = (spectra.real**2 + spectra.imag**2) @ BAND_WEIGHTS.T
    return result


def features(energy: Floats) -> npt.NDArray[np.float32]:
    """Return what the network takes: logarithms of energies, most of them from -1 to 1."""
    return (0.25 * np.log10(energy + 1e-7) + 0.4).astype(np.float32)


# The network


class Denoiser(nn.Module):
    """Bands (time x batch x bands) to gains from 0 to 1."""

    def __init__(self, width: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.input = nn.Linear(BANDS, width)
        self.gru = nn.GRU(width, hidden, 2)
        self.gains = nn.Linear(width + hidden, BANDS)

    def forward(self, bands: Tensor) -> Tensor:
        x = torch.tanh(self.input(bands))
        return torch.sigmoid(self.gains(torch.cat([x, self.gru(x)[0]], -1)))


def training_set(clips: int, seconds: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return bands and ideal gains (time x clips x bands)."""
    rng, inputs, targets = np.random.default_rng(seed), [], []
    for _ in range(clips):
        clean, noisy = mixture(seconds, rng)
        speech_energy, energy = (energies(np.fft.rfft(frames_of(sound))) for sound in (clean, noisy))
        inputs.append(features(energy))
        targets.append(np.sqrt(np.minimum(speech_energy / (energy + 1e-9), 1)).astype(np.float32))
    return tuple(torch.from_numpy(np.stack(arrays, 1)) for arrays in (inputs, targets))  # type: ignore[return-value]


def train(sparsity: float, block: str, data: tuple[Tensor, Tensor], epochs: int, batch: int = 32) -> Denoiser:
    """Train a denoiser; a sparse one rewires after every epoch, by single weights or by blocks such as 8x4."""
    torch.manual_seed(0)
    model = Denoiser()
    sparsifier = None
    if sparsity:
        sparsifier = selfish_rnn.Sparsifier(
            model, sparsity=sparsity, include=["gru"], granularity=block, rewirings=epochs
        )
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs, 1e-4)
    bands, ideal = data
    for _ in range(epochs):
        for chosen in torch.randperm(bands.shape[1]).split(batch):
            optimizer.zero_grad()
            gains = model(bands[:, chosen])
            # Roots weigh small gains more, as the ear does.
            loss = (torch.sqrt(gains + 1e-4) - torch.sqrt(ideal[:, chosen] + 1e-4)).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        if sparsifier is not None:
            sparsifier.rewire()
    if sparsifier is not None:
        sparsifier.detach()
    return model.eval()


# Streaming


def denoise(stream: selfish_rnn.runtime.Stream, sound: Floats) -> Floats:
    """Return the sound without its noise, computed frame by frame."""
    stream.reset()
    return overlap_add(np.stack(list(_denoised_frames(stream, sound))))[: len(sound)]


def _denoised_frames(stream: selfish_rnn.runtime.Stream, sound: Floats) -> Iterator[Floats]:
    for frame in frames_of(sound):
        spectrum = np.fft.rfft(frame)
        gains = stream(features(energies(spectrum[None]))[0]).numpy()
        yield np.fft.irfft(spectrum * (gains.astype(np.float64) @ BAND_WEIGHTS), WINDOW)


def snr(clean: Floats, sound: Floats) -> float:
    """Return the signal-to-noise ratio in dB."""
    return float(10 * np.log10(np.sum(clean**2) / np.sum((clean - sound) ** 2)))


def step_time(stream: selfish_rnn.runtime.Stream, steps: int = 2000) -> float:
    """Return the microseconds of one frame on its thread, the best of several rounds."""
    bands, best = torch.zeros(BANDS), float("inf")
    for _ in range(7):
        start = time.thread_time()
        for _ in range(steps):
            stream(bands)
        best = min(best, (time.thread_time() - start) / steps)
    return 1e6 * best


def write_wave(path: Path, sound: Floats) -> None:
    """Write 16-bit sound with one channel."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.floor(np.clip(sound, -1, 1) * 32767 + 0.5).astype("<i2").tobytes())


def read_wave(path: Path) -> Floats:
    """Read 16-bit sound with one channel."""
    with wave.open(str(path), "rb") as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768


NETWORKS = (
    ("dense", 0.0, "1x1"),
    ("selfish-0.67", 0.67, "1x1"),
    ("blocks-0.67", 0.67, "8x4"),
    ("selfish-0.9", 0.9, "1x1"),
    ("blocks-0.9", 0.9, "8x4"),
)
"""Names, sparsities of the recurrent layers, and the blocks that are pruned and regrown."""


def compare(folder: Path, epochs: int, clips: int, tests: int) -> list[dict[str, object]]:
    """Train all networks, print a line for each, and write files and sounds into a folder."""
    rng = np.random.default_rng(99)
    pairs = [mixture(4.0, rng) for _ in range(tests)]
    write_wave(folder / "noisy.wav", pairs[0][1])
    data = training_set(clips, 2.0, seed=1)
    rows: list[dict[str, object]] = []
    print(f"{'network':34}  SNR gain     file  time of a frame")
    for name, sparsity, block in NETWORKS:
        model = train(sparsity, block, data, epochs)
        for precision in ("float32", "int8"):
            stream = selfish_rnn.stream(model, data[0][:16, :1], time_axis=0, precision=precision)
            path = folder / f"{name}{'-int8' * (precision == 'int8')}.srnn"
            stream.save(path)
            gain = float(np.mean([snr(clean, denoise(stream, noisy)) - snr(clean, noisy) for clean, noisy in pairs]))
            weights = sum(layer.weights for layer in stream.layers)
            row = {"network": path.stem, "snr_gain_db": gain, "weights": weights, "bytes": path.stat().st_size}
            rows.append(row | {"frame_us": step_time(stream)})
            line = "{network:18}  {weights:7,} weights  {snr_gain_db:6.2f} dB  {bytes:8,}  {frame_us:6.1f} µs"
            print(line.format(**rows[-1]))
            write_wave(folder / f"{path.stem}.wav", denoise(stream, read_wave(folder / "noisy.wav")))
    (folder / "denoiser.json").write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def main(epochs: int = 30, clips: int = 320, tests: int = 24, out: str | None = None) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(out or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        compare(folder, epochs, clips, tests)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train and compare denoisers.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", help="folder for files and sounds")
    arguments = parser.parse_args()
    main(epochs=arguments.epochs, out=arguments.out)
