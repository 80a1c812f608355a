"""Contrast and perceptual difference of colours written as `#rrggbb`."""

import math
import re


def _linear(colour: str) -> list[float]:
    values = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def hexadecimal(colour: str) -> str:
    """Return a colour that Chromium computed, such as `rgb(0, 0, 255)`, as `#rrggbb`."""
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return f"#{red:02x}{green:02x}{blue:02x}"


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2.2, 1 to 21."""
    weights = (0.2126, 0.7152, 0.0722)
    luminances = sorted(
        sum(w * v for w, v in zip(weights, _linear(colour), strict=True)) for colour in (one, other)
    )
    return (luminances[1] + 0.05) / (luminances[0] + 0.05)


def _oklab(colour: str) -> tuple[float, float, float]:
    """Source: Ottosson 2020, A perceptual color space for image processing."""
    r, g, b = _linear(colour)
    long = math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b)
    medium = math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b)
    short = math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def difference(one: str, other: str) -> float:
    """Distance in OKLab: 0.02 is just noticeable, 1 is black and white."""
    return math.dist(_oklab(one), _oklab(other))
