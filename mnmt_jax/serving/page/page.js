// The translation page: the text is translated while it is typed, by the routes of LibreTranslate.
"use strict";

const TYPING_PAUSE = 400; // milliseconds without a key before the text is sent
const ALTERNATIVES = 3;
const THEMES = ["system", "light", "dark"];
const byId = (id) => document.getElementById(id);
const [source, target, text, translation] = ["source", "target", "text", "translation"].map(byId);

let settings = {};
let languages = new Map(); // by code
let detected = null; // the last detected language: {language, confidence}
let latest = 0; // number of the last request; answers to others are stale
let controller = null; // of the request in progress
let timer = null; // of the pause in typing
let upload = null; // of a document in progress
let retry = () => {};

function stored(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(`mnmt.${name}`);
    localStorage.setItem(`mnmt.${name}`, value);
  } catch { /* a browser that stores nothing */ }
  return null;
}

// Errors: one line, and what repeats the request.

function showError(message, again) {
  byId("message").textContent = message;
  byId("error").hidden = false;
  byId("retry").hidden = !again;
  retry = again || (() => {});
}

function hideError() {
  byId("error").hidden = true;
}

async function fetchJson(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached.");
  }
  let body = null;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && body !== null) return body;
  throw new Error(errorText(response.status, body));
}

// A sentence; it begins with the name of the file if there is one.
function errorText(status, body, name = "") {
  const message = (body && (body.error || body.message)) || `the server answered with status ${status}`;
  const end = /[.?!]$/.test(message) ? "" : ".";
  if (name) return `${message.startsWith(name) ? "" : `${name}: `}${message}${end}`;
  return `${message[0].toUpperCase()}${message.slice(1)}${end}`;
}

// Languages

function nameOf(code) {
  if (languages.has(code)) return languages.get(code).name;
  try {
    return new Intl.DisplayNames("en", { type: "language" }).of(code.replaceAll("_", "-"));
  } catch {
    return code;
  }
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([code, name]) => new Option(name, code, false, code === chosen)));
}

function fillSources(chosen) {
  fill(source, [["auto", "Detect"], ...[...languages.values()].map(({ code, name }) => [code, name])], chosen);
  labelDetected();
}

function fillTargets(chosen) {
  const known = languages.get(source.value);
  const codes = known ? known.targets : [...new Set([...languages.values()].flatMap((one) => one.targets))];
  const sorted = [...languages.keys()].filter((code) => codes.includes(code));
  fill(target, sorted.map((code) => [code, nameOf(code)]), codes.includes(chosen) ? chosen : sorted[0]);
}

function labelDetected() {
  const label = detected && detected.confidence > 0 ? `${nameOf(detected.language)} (detected, ${Math.round(detected.confidence)} %)` : "Detect";
  source.options[0].textContent = label;
}

function changeLanguage(event) {
  const before = event.target.dataset.before;
  if (source.value === target.value && before && before !== "auto") {
    (event.target === source ? target : source).value = before;
  }
  fillTargets(target.value);
  rememberLanguages();
  translateNow();
}

function rememberLanguages() {
  for (const select of [source, target]) {
    select.dataset.before = select.value;
    stored(select.id, select.value);
  }
  translation.lang = target.value;
  text.lang = source.value === "auto" ? "" : source.value;
}

function swap() {
  const from = source.value === "auto" ? detected && detected.language : source.value;
  const to = target.value;
  if (!languages.has(to)) return;
  source.value = to;
  fillTargets(from || target.value);
  if (translation.textContent && translation.getAttribute("aria-busy") !== "true") text.value = translation.textContent;
  rememberLanguages();
  typed();
  translateNow();
}

// Translation

function glossary() {
  const terms = Object.create(null);
  const wrong = [];
  const again = [];
  if (byId("glossary-box").hidden) return terms;
  byId("glossary").value.split("\n").forEach((line, index) => {
    const [, from, to] = /^([^=\t]+)[=\t](.+)$/.exec(line) || [];
    const targets = to ? to.split("|").map((one) => one.trim()).filter(Boolean) : [];
    const term = targets.length ? from.trim() : "";
    if (terms[term]) again.push(index + 1);
    if (term) terms[term] = [...terms[term] || [], ...targets];
    else if (line.trim()) wrong.push(index + 1);
  });
  const notes = [[wrong, "write source = target."], [again, "added to the targets of the same term above."]];
  byId("glossary-note").textContent = notes.filter(([lines]) => lines.length)
    .map(([lines, note]) => `Line ${lines.join(", ")}: ${note}`).join(" ");
  return terms;
}

function glossaryField() {
  const terms = glossary();
  return Object.keys(terms).length ? { glossary: JSON.stringify(terms) } : {};
}

function keyField() {
  return byId("key").value ? { api_key: byId("key").value } : {};
}

function typed() {
  const limit = settings.charLimit > 0 ? ` / ${settings.charLimit.toLocaleString("en")}` : "";
  byId("count").textContent = `${[...text.value].length.toLocaleString("en")}${limit}`;
  byId("clear").disabled = !text.value;
  clearTimeout(timer);
  timer = setTimeout(translateNow, TYPING_PAUSE);
}

function cancelRequest() {
  clearTimeout(timer);
  latest += 1;
  if (controller) controller.abort();
  controller = null;
}

async function translateNow() {
  cancelRequest();
  hideError();
  if (!text.value.trim() || !target.value) return showAnswer({ translatedText: "" });
  if (settings.charLimit > 0 && [...text.value].length > settings.charLimit) {
    setBusy(false);
    return showError(`The text is longer than ${settings.charLimit.toLocaleString("en")} characters.`, null);
  }
  const number = latest;
  controller = new AbortController();
  setBusy(true);
  const fields = {
    q: text.value, source: source.value, target: target.value, alternatives: ALTERNATIVES, checks: true,
    ...glossaryField(), ...keyField(),
  };
  try {
    const answer = await fetchJson("translate", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields), signal: controller.signal,
    });
    if (number === latest) showAnswer(answer);
  } catch (error) {
    if (number !== latest) return;
    setBusy(false);
    showError(error.message, translateNow);
  }
}

function setBusy(isBusy) {
  translation.setAttribute("aria-busy", String(isBusy));
  byId("status").textContent = isBusy ? "Translating…" : "";
}

function showAnswer(answer) {
  setBusy(false);
  const sentences = (answer.checks && answer.checks.sentences) || [];
  detected = answer.detectedLanguage || null;
  labelDetected();
  byId("copy").disabled = !answer.translatedText;
  if (answer.retried) byId("status").textContent = "Translated again after a failed check";
  showTranslation(answer.translatedText, sentences);
  showWarnings(sentences, answer);
  showConfidence(sentences);
  showAlternatives(answer.alternatives || []);
}

function element(tag, content, className) {
  const node = document.createElement(tag);
  node.append(...[content].flat());
  if (className) node.className = className;
  return node;
}

function problems(sentence) {
  const wrong = [];
  if (sentence.off_target) wrong.push(`seems to be ${nameOf(sentence.language)}, not ${nameOf(target.value)}`);
  if (sentence.copied) wrong.push("is a copy of the source");
  if (sentence.repeated) wrong.push("repeats itself");
  if (sentence.empty) wrong.push("has no translation");
  if (sentence.cut) wrong.push("may be cut off");
  if (sentence.unknown_characters) wrong.push(`has characters that the model does not know: ${sentence.unknown_characters}`);
  if ((sentence.missing_numbers || []).length) wrong.push(`lacks ${sentence.missing_numbers.join(", ")}`);
  return wrong;
}

// The translation, with a mark under the sentences that have problems.
function showTranslation(translated, sentences) {
  const nodes = [];
  let end = 0;
  for (const sentence of sentences) {
    const start = sentence.translation ? translated.indexOf(sentence.translation, end) : -1;
    if (start < 0 || !problems(sentence).length) continue;
    nodes.push(translated.slice(end, start), element("span", sentence.translation, "suspect"));
    end = start + sentence.translation.length;
  }
  translation.replaceChildren(...nodes, translated.slice(end));
}

function showList(id, items) {
  byId(id).querySelector("ul, ol").replaceChildren(...items);
  byId(id).hidden = !items.length;
}

function showWarnings(sentences, answer) {
  const items = sentences.filter((one) => problems(one).length)
    .map((one) => element("li", [quoted("q", one.translation || one.source), ` ${problems(one).join("; ")}.`]));
  showList("warnings", [...items, ...termWarnings(answer)]);
}

// A text in its own direction.
function quoted(tag, content) {
  return Object.assign(element(tag, content), { dir: "auto" });
}

function termWarnings(answer) {
  return [["missingTerms", "lacks terms"], ["forbiddenTerms", "has forbidden terms"]].filter(([name]) => answer[name])
    .map(([name, label]) => element("li", [
      `The translation ${label} of the glossary: `,
      ...answer[name].flatMap((term, index) => [index ? ", " : "", quoted("bdi", term)]),
      ".",
    ]));
}

function showConfidence(sentences) {
  const scored = sentences.filter((one) => Number.isFinite(one.score));
  showList("confidence", scored.map((one) => {
    const probability = Math.min(1, Math.exp(one.score));
    const meter = document.createElement("meter");
    Object.assign(meter, { min: 0, max: 1, low: 0.3, high: 0.6, optimum: 1, value: probability });
    meter.setAttribute("aria-label", "Confidence");
    const percent = `${Math.round(100 * probability)} %`;
    return element("li", [element("span", [meter, percent], "percent"), quoted("span", one.translation)]);
  }));
}

function showAlternatives(others) {
  showList("alternatives", others.filter((other) => other.trim()).map((other) => {
    const button = element("button", other);
    Object.assign(button, { type: "button", dir: "auto", lang: translation.lang });
    button.addEventListener("click", () => {
      const before = translation.textContent;
      translation.textContent = button.textContent;
      button.textContent = before;
    });
    return element("li", button);
  }));
}

async function copy() {
  try {
    await navigator.clipboard.writeText(translation.textContent);
  } catch { // a page without encryption may not use the clipboard
    getSelection().selectAllChildren(translation);
    document.execCommand("copy");
  }
  byId("status").textContent = "Copied";
}

// Documents

function sendDocument(file, language = target.value) {
  if (upload) upload.abort();
  const form = new FormData();
  const fields = { source: source.value, target: language, ...glossaryField(), ...keyField() };
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  form.append("file", file);
  hideError();
  byId("download").hidden = true;
  showProgress(`Sending ${file.name}`, 0);
  const request = new XMLHttpRequest();
  upload = request;
  request.upload.addEventListener("progress", (event) => {
    showProgress(`Sending ${file.name}`, (100 * event.loaded) / event.total);
  });
  request.upload.addEventListener("load", () => showProgress(`Translating ${file.name}`, null));
  request.addEventListener("loadend", () => {
    if (upload === request) receiveDocument(request, file, language);
  });
  request.responseType = "json";
  request.open("POST", "translate_file");
  request.send(form);
}

function receiveDocument(request, file, language) {
  upload = null;
  byId("upload").hidden = true;
  byId("file").value = "";
  const address = request.response && request.response.translatedFileUrl;
  if (request.status === 200 && address) return offerDownload(request.response, file.name, language);
  const unreachable = { error: "the server cannot be reached" };
  const message = errorText(request.status, request.status ? request.response : unreachable, file.name);
  showError(message, () => sendDocument(file, language));
}

function offerDownload(answer, name, language) {
  const link = byId("download").querySelector("a");
  const [, stem, ending] = /^(.*?)(\.[^.]*)?$/.exec(name);
  // Relative, because a proxy may have another address than the server knows.
  link.href = `download_file/${answer.translatedFileUrl.split("/").pop()}`;
  link.download = `${stem}.${language}${ending || ""}`;
  link.textContent = `Download ${link.download}`;
  byId("download").querySelector("ul").replaceChildren(...termWarnings(answer));
  byId("download").hidden = false;
  link.focus();
}

function showProgress(label, percent) {
  byId("upload").hidden = false;
  byId("upload-status").textContent = label;
  if (percent === null) byId("progress").removeAttribute("value");
  else byId("progress").value = percent;
}

function cancelUpload() {
  const request = upload;
  upload = null;
  if (request) request.abort();
  byId("upload").hidden = true;
  byId("file").value = "";
  byId("file").focus();
}

function listenForDocuments() {
  const area = byId("drop");
  const isOver = (event) => [...event.dataTransfer.types].includes("Files");
  for (const name of ["dragover", "drop"]) { // also beside the area, where a browser would open the file
    document.addEventListener(name, (event) => {
      if (!isOver(event)) return;
      event.preventDefault();
      area.classList.toggle("over", name === "dragover");
      if (name === "drop" && !byId("documents").hidden && event.dataTransfer.files.length) sendDocument(event.dataTransfer.files[0]);
    });
  }
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) area.classList.remove("over");
  });
  byId("file").addEventListener("change", () => {
    if (byId("file").files.length) sendDocument(byId("file").files[0]);
  });
  byId("cancel").addEventListener("click", cancelUpload);
}

// Scheme and start

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  stored("theme", theme);
}

async function load() {
  hideError();
  try {
    const [list, values] = await Promise.all([fetchJson("languages"), fetchJson("frontend/settings")]);
    settings = values;
    list.sort((one, other) => one.name.localeCompare(other.name, "en"));
    languages = new Map(list.map((one) => [one.code, one]));
  } catch (error) {
    return showError(error.message, load);
  }
  const remembered = stored("source");
  fillSources(languages.has(remembered) ? remembered : "auto");
  fillTargets(stored("target") || settings.language.target.code);
  byId("key-label").hidden = !settings.keyRequired;
  byId("glossary-box").hidden = !settings.glossary;
  byId("documents").hidden = !settings.filesTranslation;
  byId("formats").textContent = (settings.supportedFilesFormat || []).join(" ");
  byId("file").accept = (settings.supportedFilesFormat || []).join(",");
  rememberLanguages();
  typed();
  if (document.activeElement === document.body) text.focus();
}

function listen() {
  text.addEventListener("input", typed);
  byId("glossary").addEventListener("input", typed);
  byId("key").addEventListener("change", translateNow);
  source.addEventListener("change", changeLanguage);
  target.addEventListener("change", changeLanguage);
  byId("swap").addEventListener("click", swap);
  byId("copy").addEventListener("click", copy);
  byId("retry").addEventListener("click", () => retry());
  byId("clear").addEventListener("click", () => {
    text.value = "";
    typed();
    translateNow();
    text.focus();
  });
  byId("theme").addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      translateNow();
    }
  });
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  listenForDocuments();
}

setTheme(THEMES.includes(stored("theme")) ? stored("theme") : "system");
listen();
load();
