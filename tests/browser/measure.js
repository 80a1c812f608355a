// Measurements of pages, each in a frame of each width, with everything unfolded: chromium.py.
function broken(node) {
  const range = document.createRange(), text = node.data, words = [];
  range.selectNodeContents(node);
  if (range.getClientRects().length < 2) return words;
  let top = null;
  for (let i = 0; i < text.length; i++) {
    range.setStart(node, i); range.setEnd(node, i + 1);
    const box = range.getClientRects()[0];
    if (!box || /\s/.test(text[i])) continue;
    const letters = i && /[A-Za-z0-9]/.test(text[i - 1]) && /[A-Za-z0-9]/.test(text[i]);
    if (top !== null && box.top > top + 3 && letters)
      words.push(text.slice(0, i) + "|" + text.slice(i));
    top = box.top;
  }
  return words;
}
function texts(root, document) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), nodes = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.data.trim() && !node.parentElement.closest("style,title,script,pre,code,svg")) nodes.push(node);
  }
  return nodes;
}
function textBox(element, document) {
  const range = document.createRange();
  range.selectNodeContents(element);
  return range.getBoundingClientRect();
}
function hidden(document) {
  const found = [];
  for (const cell of document.querySelectorAll("td")) {
    if (!cell.textContent.trim()) continue;
    const box = cell.closest(".scroll");
    if (box) {
      const first = cell.parentElement.firstElementChild;
      const sticky = getComputedStyle(first).position === "sticky" ? first.offsetWidth : 0;
      box.scrollLeft = cell.offsetLeft - sticky;
    }
    const text = textBox(cell, document), name = cell.parentElement.textContent.slice(0, 60) + " / " + cell.textContent;
    const window = box ? box.getBoundingClientRect() : document.documentElement.getBoundingClientRect();
    if (text.left < window.left - 1 || text.right > window.right + 1) { found.push("cut: " + name); continue; }
    for (const x of [text.left + 1, text.right - 1]) {
      const top = document.elementFromPoint(x, (text.top + text.bottom) / 2);
      if (!top || !(cell.contains(top) || top.contains(cell))) { found.push("covered: " + name); break; }
    }
  }
  for (const box of document.querySelectorAll(".scroll")) box.scrollLeft = 0;
  return found;
}
function outside(document) {
  const width = document.documentElement.clientWidth, found = [];
  for (const element of document.querySelectorAll("body *")) {
    const box = element.getBoundingClientRect();
    const inside = element.closest(".scroll,pre,svg") && !element.matches(".scroll,pre,svg");
    if (!inside && box.width && (box.right > width + 1 || box.left < -1))
      found.push(element.tagName + "." + element.className + ": " + element.textContent.slice(0, 40));
  }
  return found;
}
function measured(document) {
  const window = document.defaultView, sizes = {}, fonts = [];
  for (const element of document.querySelectorAll("h1,h2,h3,p,summary,caption,figcaption,td,dd,.legend")) {
    const size = parseFloat(window.getComputedStyle(element).fontSize), name = element.tagName + (element.className ? "." + element.className : "");
    sizes[name] = [...new Set([...(sizes[name] || []), size])];
  }
  for (const text of document.querySelectorAll("svg text"))
    fonts.push(Math.round(10 * parseFloat(window.getComputedStyle(text).fontSize) * text.getScreenCTM().a) / 10);
  const names = [...document.querySelectorAll("table.summary .name")];
  return {
    viewport: window.innerWidth,
    width: document.documentElement.scrollWidth,
    broken: texts(document.body, document).flatMap(broken),
    hidden: hidden(document),
    outside: outside(document),
    colours: [...new Set(names.map(name => window.getComputedStyle(name, "::before").backgroundColor))],
    background: window.getComputedStyle(document.querySelector("section")).backgroundColor,
    sizes: sizes,
    chart_fonts: [...new Set(fonts)],
    cells: document.querySelectorAll("td").length,
    title: document.title,
  };
}
async function run() {
  const results = {};
  for (const [name, text] of Object.entries(PAGES)) {
    results[name] = {};
    for (const width of WIDTHS) {
      const frame = document.createElement("iframe");
      frame.style.cssText = "border:0;width:" + width + "px;height:900px";
      frame.srcdoc = text;
      document.body.appendChild(frame);
      await new Promise(resolve => frame.onload = resolve);
      const inner = frame.contentDocument;
      for (const fold of inner.querySelectorAll("details")) fold.open = true;
      frame.style.height = inner.documentElement.scrollHeight + "px";
      results[name][width] = measured(inner);
      frame.remove();
    }
  }
  const output = document.createElement("pre");
  output.id = "measured";
  output.textContent = JSON.stringify(results);
  document.body.appendChild(output);
}
run();
