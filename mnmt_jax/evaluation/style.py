"""The report's style sheet: no fonts, images or scripts from anywhere; light, dark and printed."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b1f24; --muted: #59616d; --line: #d9dde3;
  --good: #57a0e5; --bad: #ee8f4d; --exact: #1a7445; --off: #a84300;
  --run-0: #1f66b8; --run-1: #c2500a; --run-2: #1c7f55; --run-3: #8546b0; --run-4: #9a6a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12151a; --card: #1a1e25; --ink: #e7eaee; --muted: #9ba5b2; --line: #333a45;
    --good: #1d5c9e; --bad: #a04c14; --exact: #5fce93; --off: #ffa366;
    --run-0: #6fb1f5; --run-1: #ff9a52; --run-2: #57c795; --run-3: #c792ee; --run-4: #dcb33e;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 64px; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 8px 0 4px; text-wrap: balance; }
h2 { font-size: 1.2rem; margin: 0 0 4px; }
h3 { font-size: 1rem; margin: 20px 0 6px; }
p { margin: 4px 0 12px; max-width: 75ch; }
.muted, .key { color: var(--muted); }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 18px 20px 20px; margin-top: 18px;
}
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 2px 0 6px; }
.summary th, .summary td { padding: 5px 14px 5px 0; text-align: right; white-space: nowrap; }
.summary th { font-weight: 600; color: var(--muted); font-size: .86rem; }
.summary tbody th { color: var(--ink); font-size: 1rem; }
.summary th:first-child { position: sticky; left: 0; background: var(--card); }
.summary th:first-child { text-align: left; }
.summary tbody tr { border-top: 1px solid var(--line); }
.summary .group { text-align: center; color: var(--ink); }
.summary .group, .summary .first { border-left: 1px solid var(--line); padding-left: 14px; }
.best { font-weight: 700; }
.name::before {
  content: ""; display: inline-block; width: .7em; height: .7em; border-radius: 2px;
  background: var(--run); margin-right: .45em;
}
.run-0 { --run: var(--run-0); } .run-1 { --run: var(--run-1); } .run-2 { --run: var(--run-2); }
.run-3 { --run: var(--run-3); } .run-4 { --run: var(--run-4); }
.maps { display: flex; flex-wrap: wrap; gap: 14px 32px; }
.map { max-width: 100%; }
.heat th, .heat td { height: 2.1em; min-width: 3.5em; padding: 0 .35em; text-align: center; }
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
.good { --hue: var(--good); } .bad { --hue: var(--bad); }
abbr { text-decoration: none; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: center; margin: 2px 0 8px;
  font-size: .82rem; color: var(--muted); }
.legend .ramp { display: inline-block; width: 110px; height: .8em; border-radius: 3px;
  margin: 0 .4em; vertical-align: -1px; border: 1px solid var(--line);
  background: linear-gradient(90deg in oklab, var(--card), var(--hue)); }
.legend .box { display: inline-block; width: 1.2em; height: .9em; border-radius: 3px;
  border: 1.5px solid var(--ink); margin-right: .4em; vertical-align: -2px; }
.charts { display: flex; flex-wrap: wrap; gap: 16px 32px; }
.charts figure { margin: 0; flex: 1 1 400px; min-width: 0; max-width: 640px; }
.charts svg { width: 100%; height: auto; display: block; }
.charts text { fill: var(--muted); font-size: 13px; }
.charts .grid { stroke: var(--line); }
.charts path { fill: none; stroke: var(--run); stroke-width: 2; stroke-linejoin: round;
  stroke-linecap: round; }
.charts rect { fill: var(--run); }
.charts .dashed path, path.dashed { stroke-dasharray: 6 5; }
figcaption { font-weight: 600; margin-bottom: 4px; }
.sample { border-top: 1px solid var(--line); padding: 10px 0; display: grid; gap: 8px 18px;
  grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); }
.sample .key { font-size: .78rem; display: block; }
.sample .text { overflow-wrap: anywhere; display: block; }
.mark { font-size: .78rem; color: var(--muted); }
.mark.exact { color: var(--exact); font-weight: 600; }
.mark.off { color: var(--off); font-weight: 600; }
details > summary { cursor: pointer; padding: 6px 0; font-weight: 600; }
details + details { margin-top: 6px; }
details > summary .muted { font-weight: 400; }
.averages th, .averages td { padding: 3px 18px 3px 0; text-align: right; }
.averages th:first-child { text-align: left; font-weight: 400; }
.averages thead th { color: var(--muted); font-weight: 600; font-size: .86rem; }
.averages tbody tr { border-top: 1px solid var(--line); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 3px 18px;
  margin: 6px 0; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: .85rem/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { overflow-x: auto; margin: 6px 0; }
@media (max-width: 720px) {
  main { padding: 12px 10px 40px; }
  section { padding: 14px 12px; border-radius: 8px; }
  h1 { font-size: 1.35rem; }
  .sample { grid-template-columns: minmax(0, 1fr); gap: 6px; }
  .summary tbody th { white-space: normal; overflow-wrap: anywhere; }
  .heat { font-size: .86rem; }
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
