"""Self-contained style sheet of HTML pages, for light and dark themes and print.

Source of `COLOURS`: the categorical palettes of IBM's Carbon design system for data visualization,
white and dark theme, in their order. They have a contrast of 3:1 with the background, and
neighbours are distinguishable.
"""

COLOURS = (
    *("#6929c4", "#1192e8", "#005d5d", "#9f1853", "#fa4d56", "#570408", "#198038"),
    *("#002d9c", "#ee538b", "#b28600", "#009d9a", "#012749", "#8a3800", "#a56eff"),
)
DARK_COLOURS = (
    *("#8a3ffc", "#33b1ff", "#007d79", "#ff7eb6", "#fa4d56", "#fff1f1", "#6fdc8c"),
    *("#4589ff", "#d12771", "#d2a106", "#08bdba", "#bae6ff", "#ba4e00", "#d4bbff"),
)


def colour_class(number: int) -> str:
    """Return the CSS class that sets `--run` to the colour of a run or curve.

    Args:
        number: index from 0; colours repeat after `len(COLOURS)`.
    """
    return f"run-{number % len(COLOURS)}"


def _variables(colours: tuple[str, ...]) -> str:
    return " ".join(f"--run-{number}: {colour};" for number, colour in enumerate(colours))


_TEMPLATE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b1f24; --muted: #59616d; --line: #d9dde3;
  --good: #57a0e5; --bad: #ee8f4d; --exact: #1a7445; --off: #a84300;
  LIGHT
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12151a; --card: #1a1e25; --ink: #e7eaee; --muted: #9ba5b2; --line: #333a45;
    --good: #1d5c9e; --bad: #a04c14; --exact: #5fce93; --off: #ffa366;
    DARK
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 64px; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 8px 0 4px; text-wrap: balance;
  overflow-wrap: break-word; }
h2 { font-size: 1.2rem; margin: 0 0 4px; overflow-wrap: break-word; }
h3 { font-size: 1rem; margin: 20px 0 6px; overflow-wrap: break-word; }
p { margin: 4px 0 12px; max-width: 75ch; overflow-wrap: break-word; }
li { overflow-wrap: anywhere; }
.warning { border-left: 4px solid var(--off); padding: 2px 0 2px 10px; }
.muted, .key { color: var(--muted); }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 18px 20px 20px; margin-top: 18px;
}
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 2px 0 6px; }
.heat .name { max-width: 18rem; }
.summary th, .summary td { padding: 5px 0 5px 14px; text-align: right; white-space: nowrap; }
.summary th { font-weight: 600; color: var(--muted); font-size: .86rem; }
.summary tbody th { color: var(--ink); font-size: 1rem; font-weight: 400; }
.summary tr > :first-child { position: sticky; left: 0; background: var(--card); z-index: 1;
  text-align: left; padding-left: 0; white-space: normal; }
.summary tbody tr { border-top: 1px solid var(--line); }
.summary tbody .group { color: var(--ink); font-weight: 600; padding-top: 14px; position: static; }
.summary tr:has(> .group) { border-top: 0; }
.summary .name { width: max-content; max-width: min(34rem, 38vw); }
.summary .name + .muted { display: block; font-weight: 400; font-size: .82rem; padding-left: 1.15em;
  max-width: min(34rem, 38vw); }
.summary + .summary { margin-top: 18px; }
.best { font-weight: 700; }
.interval { color: var(--muted); font-weight: 400; font-size: .82rem; }
.name { display: inline-block; padding-left: 1.15em; text-indent: -1.15em; text-align: left;
  overflow-wrap: break-word; max-width: 100%; }
.name::before {
  content: ""; display: inline-block; width: .7em; height: .7em; border-radius: 2px;
  background: var(--run); margin-right: .45em;
}
CLASSES
.maps { display: flex; flex-wrap: wrap; gap: 14px 32px; }
.map { max-width: 100%; }
.heat th, .heat td { height: 2.1em; min-width: 3.3em; padding: 0 .35em; text-align: center; }
.heat th { font-weight: 600; color: var(--muted); }
.heat td {
  border: 2px solid var(--card); border-radius: 5px;
  background: color-mix(in oklab, var(--hue) var(--share), var(--card));
}
.heat td.mean, .heat td.none { background: none; }
.heat td.mean { color: var(--muted); }
.heat td.none { color: var(--muted); }
.heat td.trained { box-shadow: inset 0 0 0 1.5px var(--ink); }
.heat tbody th, .heat .corner { position: sticky; left: 0; background: var(--card); z-index: 1; }
.heat .corner { font-size: .75rem; font-weight: 400; white-space: nowrap; }
.dense .heat { font-size: .72rem; }
.dense .heat th, .dense .heat td { min-width: 0; padding: 0 .28em; }
.dense .heat td { border-width: 1px; border-radius: 3px; }
.values { font-size: .8rem; }
.values .heat th, .values .heat td { min-width: 0; padding: 0 .35em; }
.values .heat td { border-width: 1px; border-radius: 3px; }
.values caption { font-size: .8rem; }
.good { --hue: var(--good); } .bad { --hue: var(--bad); }
abbr { text-decoration: none; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: center; margin: 2px 0 8px;
  font-size: .82rem; color: var(--muted); }
.legend .item { display: inline-flex; gap: .4em; align-items: center; min-width: 0; }
.legend .item svg { flex: none; }
.legend .ramp { display: inline-block; width: 110px; height: .8em; border-radius: 3px;
  margin: 0 .4em; vertical-align: -1px; border: 1px solid var(--line);
  background: linear-gradient(90deg in oklab, var(--card), var(--hue)); }
.legend .box { display: inline-block; width: 1.2em; height: .9em; border-radius: 3px;
  border: 1.5px solid var(--ink); margin-right: .4em; vertical-align: -2px; }
.charts { display: grid; gap: 16px 32px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr)); }
.charts figure { margin: 0; min-width: 0; max-width: 640px; }
.charts svg { width: 100%; height: auto; display: block; }
.charts text { fill: var(--muted); font-size: 13px; }
.charts .grid { stroke: var(--line); }
.charts path { fill: none; stroke: var(--run); stroke-width: 2; stroke-linejoin: round;
  stroke-linecap: round; }
.charts rect { fill: var(--run); }
.charts circle { fill: var(--run); }
.charts path.open { fill: var(--card); }
.charts .dashed path, path.dashed { stroke-dasharray: 6 5; }
figcaption { font-weight: 600; margin-bottom: 4px; }
.sample { border-top: 1px solid var(--line); padding: 10px 0; display: grid; gap: 8px 18px;
  grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); }
.sample .key { font-size: .78rem; display: block; }
.sample.rows { grid-template-columns: minmax(0, 1fr); gap: 6px; }
.sample.rows > div { display: grid; gap: 0 14px; align-items: baseline;
  grid-template-columns: minmax(0, 17rem) minmax(0, 1fr); }
.sample.rows .mark { grid-column: 2; }
.sample .text { overflow-wrap: break-word; display: block; }
.mark { font-size: .78rem; color: var(--muted); }
.mark.exact { color: var(--exact); font-weight: 600; }
.mark.off { color: var(--off); font-weight: 600; }
details > summary { cursor: pointer; padding: 6px 0; font-weight: 600;
  overflow-wrap: break-word; }
details + details { margin-top: 6px; }
details > summary .muted { font-weight: 400; }
.averages th, .averages td { padding: 3px 18px 3px 0; text-align: right; }
.averages th:first-child { text-align: left; font-weight: 400; }
.averages thead th { color: var(--muted); font-weight: 600; font-size: .86rem; }
.reproduced tbody th { min-width: 10rem; }
.averages td { white-space: nowrap; }
.averages tbody th { min-width: 7rem; position: sticky; left: 0; background: var(--card); }
.summary .words { white-space: normal; text-align: left; max-width: 24rem; }
.summary td.words { min-width: 12rem; }
.averages tbody tr { border-top: 1px solid var(--line); }
dl { display: grid; grid-template-columns: fit-content(16rem) minmax(0, 1fr); gap: 3px 18px;
  margin: 6px 0; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: .85rem/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { overflow-x: auto; margin: 6px 0; }
@media (max-width: 720px) {
  main { padding: 12px 10px 40px; }
  section { padding: 14px 12px; border-radius: 8px; }
  h1 { font-size: 1.35rem; }
  .sample, .sample.rows > div { grid-template-columns: minmax(0, 1fr); gap: 6px; }
  .sample.rows .mark { grid-column: 1; }
  .summary th, .summary td { padding-left: 8px; font-size: .86rem; }
  .summary thead th { white-space: normal; }
  .summary .name, .summary .name + .muted { max-width: 34vw; }
  .summary tbody th { font-size: .86rem; }
  .averages th, .averages td { padding-right: 9px; font-size: .8rem; }
  .averages tbody th { min-width: 0; max-width: 30vw; overflow-wrap: break-word; }
  .heat { font-size: .86rem; }
  .charts text { font-size: 17px; }
  .heat th, .heat td { min-width: 3.1em; padding: 0 .2em; }
  dl { grid-template-columns: minmax(0, 1fr); gap: 0; }
  dd { margin-bottom: 8px; }
}
@media print {
  body { background: none; font-size: 11pt; }
  main { max-width: none; padding: 0; }
  section { border: 0; padding: 0; break-inside: avoid-page; }
  .scroll { overflow: visible; }
  * { print-color-adjust: exact; }
}
"""
_CLASSES = "\n".join(
    f".run-{number} {{ --run: var(--run-{number}); }}" for number in range(len(COLOURS))
)
STYLE = (
    _TEMPLATE.replace("LIGHT", _variables(COLOURS))
    .replace("DARK", _variables(DARK_COLOURS))
    .replace("CLASSES", _CLASSES)
)
