"""Line charts as SVG."""

import math
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 64, 190, 40, 48
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#777777")


def chart(title, x_name, y_name, series, joined=True):
    """series: {name: [(x, y)]}; joined: points of a series are joined by a line."""
    points = [p for ps in series.values() for p in ps if all(map(math.isfinite, p))]
    xs, ys = axis([x for x, _ in points]), axis([y for _, y in points])
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 22, title, size=15),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name, "middle"),
        text(LEFT - 50, TOP - 6, y_name),
    ]
    out += grid(xs, ys)
    for i, (name, line) in enumerate(series.items()):
        out += draw(name, line, xs, ys, i, joined)
    return "\n".join([*out, "</svg>"]) + "\n"


def axis(values):
    """Round ticks that span the values."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / 5
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [i * step for i in range(first, last + 1)]


def place_x(x, xs):
    return LEFT + (x - xs[0]) / (xs[-1] - xs[0]) * (WIDTH - LEFT - RIGHT)


def place_y(y, ys):
    return HEIGHT - BOTTOM - (y - ys[0]) / (ys[-1] - ys[0]) * (HEIGHT - TOP - BOTTOM)


def grid(xs, ys):
    out = []
    for x in xs:
        at = place_x(x, xs)
        out.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        out.append(text(at, HEIGHT - BOTTOM + 16, f"{x:g}", "middle"))
    for y in ys:
        at = place_y(y, ys)
        out.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
        out.append(text(LEFT - 6, at + 4, f"{y:.4g}", "end"))
    return out


def draw(name, line, xs, ys, index, joined):
    color = COLORS[index % len(COLORS)]
    at = [(place_x(x, xs), place_y(y, ys)) for x, y in line if math.isfinite(x + y)]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
    out = []
    if joined and len(at) > 1:
        out.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
    else:
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>' for x, y in at]
    top = TOP + 8 + 18 * index
    left = WIDTH - RIGHT + 12
    out.append(f'<rect x="{left}" y="{top - 8}" width="10" height="10" fill="{color}"/>')
    return [*out, text(left + 16, top + 1, name)]


def text(x, y, words, anchor="start", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">' + (
        escape(words) + "</text>"
    )
