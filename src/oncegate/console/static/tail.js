// The live tail of the Events screen: adds new rows at the top of the table.

const MOST_ROWS = 1000; // in the page
const GAP = "Live. There are more new rows than can be shown; the list has all of them.";
// Characters that change the direction of the text after them. requests.py has the same list.
const DIRECTION = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const RETRY = 5000; // milliseconds after the service has refused the stream

const tail = document.querySelector("#tail");
const body = document.querySelector("#rows");

// ── rows ────────────────────────────────────────────────────────────────────────────────────────────

// Shows such characters as their codes, as the pages of the service do.
function visible(text) {
  return (text ?? "").replace(DIRECTION, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// Makes the same row as event_rows.py. `textContent` shows every text as text.
function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = visible(text);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  return made;
}

function address(base, query) {
  return `${base}?${new URLSearchParams(query)}`;
}

function line(text, classes = "") {
  return text ? element("span", text, { class: `line${classes}`, title: text }) : "";
}

// Wraps at the dots of the text.
function wrapped(text) {
  if (!text) {
    return "";
  }
  const made = element("span", "", { class: "line wrap", title: text });
  visible(text).split(".").forEach((part, number) => made.append(...(number ? [".", element("wbr"), part] : [part])));
  return made;
}

function link(inner, attributes) {
  const made = element("a", "", attributes);
  made.append(...inner);
  return made;
}

function cells(row) {
  const key = row.key ? { key: row.key, ...(row.namespace ? { namespace: row.namespace } : {}) } : {};
  const event = address(tail.dataset.event, { ...key, row: row.id });
  const conversation = address(tail.dataset.conversation, { id: row.entity ?? "" });
  const time = element("time", "", { datetime: row.at });
  const clock = element("span", row.time.slice(11), { class: "clock" });
  time.append(clock, " ", element("span", row.time.slice(0, 10), { class: "soft" }));
  const status = row.status.replaceAll("_", " ");
  return [
    [link([time], { href: event })],
    [element("span", status, { class: `badge status-${status.replaceAll(" ", "-")}` }), line(row.kind, " soft")],
    [wrapped(row.type), line(row.event, " soft")],
    [
      row.entity ? link([visible(row.entity)], { class: "line", href: conversation, title: row.entity }) : "",
      row.key ? link([element("code", row.key.slice(0, 12), { title: row.key })], { href: event }) : "",
    ],
    [wrapped(row.route), line(row.attempt && `attempt ${row.attempt}`, " soft")],
    [line(row.lag && `lag ${row.lag}`, " soft"), line(row.took && `took ${row.took}`, " soft")],
    [row.copies ? element("strong", row.copies, { class: "line" }) : "", visible(row.reason)],
  ];
}

const columns = [...document.querySelectorAll(".events thead th")].map((each) => each.textContent);

function tableRow(row) {
  const made = element("tr", "", { "data-id": row.id, class: "new" });
  cells(row).forEach((content, number) => {
    const cell = element("td", "", { "data-label": columns[number] });
    cell.append(...content.filter(Boolean)); // an empty text would keep the cell from being :empty
    made.append(cell);
  });
  return made;
}

// ── the list ────────────────────────────────────────────────────────────────────────────────────────

let waiting = []; // rows that are not shown yet, oldest first; at most MOST_ROWS
let count = 0; // rows that arrived while the tail was paused
let isPaused = false; // by the button
let isHeld = false; // by the pointer or the focus

const pause = tail?.querySelector("[data-pause]");
const show = tail?.querySelector("[data-show]");
const state = tail?.querySelector("[data-state]");

// A new row would move everything below it, also while the top of the table is still in the window.
function isScrolled() {
  return window.scrollY > 0;
}

function arrive(rows) {
  waiting.push(...rows);
  count += rows.length;
  if (waiting.length > MOST_ROWS) {
    waiting = waiting.slice(-MOST_ROWS);
  }
  update();
}

function update() {
  if (waiting.length && !isPaused && !isHeld && !isScrolled()) {
    flush();
  }
  show.hidden = !count;
  show.textContent = count === 1 ? "1 new row, show it" : `${count.toLocaleString("en")} new rows, show them`;
  showState();
}

function flush() {
  const made = document.createDocumentFragment();
  for (let number = waiting.length - 1; number >= 0; number -= 1) {
    made.append(tableRow(waiting[number]));
  }
  body.prepend(made);
  waiting = [];
  count = 0;
  const isCut = body.rows.length > MOST_ROWS;
  while (body.rows.length > MOST_ROWS) {
    body.deleteRow(-1);
  }
  if (isCut) {
    linkOlder(body.rows[body.rows.length - 1].dataset.id);
  }
}

// Rows that were removed from the page are on the next page.
function linkOlder(before) {
  let older = document.querySelector(".pager a[rel=next]");
  if (!older) {
    const pager = element("nav", "", { class: "pager", "aria-label": "Pages" });
    older = element("a", "Older", { rel: "next" });
    pager.append(older);
    body.closest("table").after(pager);
  }
  const to = new URL(location.href);
  to.searchParams.set("before", before);
  older.href = to.href;
}

// ── the stream ──────────────────────────────────────────────────────────────────────────────────────

let source = null;
let last = ""; // the id of the last row that arrived
let hasGap = false; // rows were left out
let notice = state?.textContent; // shown in place of "Live" or "Paused"; empty while the stream works

function say(text) {
  notice = text;
  showState();
}

function showState() {
  const isWaiting = waiting.length && isScrolled();
  const text = notice || (isPaused ? "Paused" : isWaiting ? "Paused while you scroll" : "Live");
  if (state.textContent !== text) {
    state.textContent = text;
  }
}

function connect() {
  const to = new URL(tail.dataset.src, location.href);
  if (last) {
    to.searchParams.set("after", last);
  }
  source = new EventSource(to);
  source.addEventListener("open", () => say(""));
  source.addEventListener("rows", ({ data, lastEventId }) => {
    last = lastEventId;
    say(hasGap ? GAP : "");
    if (body) {
      arrive(JSON.parse(data));
    } else {
      location.reload(); // the first rows: the page has no table yet
    }
  });
  source.addEventListener("gap", () => (hasGap = true));
  source.addEventListener("problem", ({ data }) => say(`The journal cannot be read: ${JSON.parse(data)}`));
  source.addEventListener("solved", () => say(""));
  source.addEventListener("error", failed);
}

// The browser connects again by itself, unless the service has refused the stream. An EventSource does not say why.
async function failed() {
  if (source.readyState !== EventSource.CLOSED) {
    say("Connecting again");
    return;
  }
  disconnect();
  try {
    const answer = await fetch(tail.dataset.src, { signal: AbortSignal.timeout(RETRY) });
    say(answer.ok ? "Connecting again" : await answer.text());
    await answer.body?.cancel().catch(() => {});
  } catch {
    say("The service does not answer. Connecting again");
  }
  setTimeout(() => source ?? (document.hidden || connect()), RETRY);
}

function disconnect() {
  source?.close();
  source = null;
}

// ── the person ──────────────────────────────────────────────────────────────────────────────────────

function hold(now) {
  isHeld = now;
  update();
}

if (tail) {
  tail.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Resume" : "Pause";
    say("");
    update();
  });
  show.addEventListener("click", () => {
    flush();
    update();
    pause.focus(); // the button that has the focus is hidden now
    window.scrollTo({ top: 0 });
  });
  if (body) {
    body.addEventListener("pointerenter", ({ pointerType }) => hold(pointerType === "mouse"));
    body.addEventListener("pointerleave", () => hold(body.contains(document.activeElement)));
    body.addEventListener("focusin", () => hold(true));
    body.addEventListener("focusout", ({ relatedTarget }) => hold(body.contains(relatedTarget) || body.matches(":hover")));
    document.addEventListener("scroll", update, { passive: true });
  }
  // A hidden page would occupy a connection: a browser opens only six to one server.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      disconnect();
    } else if (!source) {
      connect();
    }
  });
  if (!document.hidden) {
    connect();
  }
}
