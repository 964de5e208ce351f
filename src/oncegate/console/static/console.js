// The script of every page. A page must be readable without it.

const root = document.documentElement;
root.classList.add("scripted");

// ── forms ───────────────────────────────────────────────────────────────────────────────────────────

// A form with `data-autosubmit` is sent as soon as a choice changes.
document.addEventListener("change", ({ target }) => {
  if (target.matches("form[data-autosubmit] select, form[data-autosubmit] input[type=checkbox]")) {
    target.form.requestSubmit();
  }
});

document.addEventListener("submit", ({ target: form }) => {
  if (form.method !== "post") {
    // Empty fields are left out, so that the address of a view is short. The page may be shown again: see `pageshow`.
    for (const field of form.elements) {
      if (field.name && field.value === "" && !field.disabled) {
        field.disabled = true;
        field.dataset.left = "";
      }
    }
    return;
  }
  // A second click must not send the form again. The buttons are disabled later: a disabled button is not sent.
  setTimeout(() => {
    for (const button of form.querySelectorAll("button")) {
      button.disabled = true;
      button.setAttribute("aria-busy", "true");
    }
  });
});

// A browser can show the page as it was left, with its fields disabled.
window.addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll("[data-left]")) {
    field.disabled = false;
    delete field.dataset.left;
  }
  for (const button of document.querySelectorAll("button[aria-busy=true]")) {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
});

// ── times ───────────────────────────────────────────────────────────────────────────────────────────

const UNITS = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
  ["second", 1],
];
const words = new Intl.RelativeTimeFormat("en", { numeric: "always" });

function relative(moment) {
  const seconds = (moment - Date.now()) / 1000;
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? UNITS.at(-1);
  return words.format(Math.trunc(seconds / size), unit);
}

// The title of a time is made when it is shown, so it is never out of date.
document.addEventListener("pointerover", ({ target }) => {
  const time = target.closest?.("time[datetime]");
  const moment = time ? Date.parse(time.dateTime) : NaN;
  if (!Number.isNaN(moment)) {
    time.title = relative(moment);
  }
});

// ── copy ────────────────────────────────────────────────────────────────────────────────────────────

const announcement = document.createElement("p");
announcement.className = "hidden";
announcement.setAttribute("role", "status");
document.body.append(announcement);

if (navigator.clipboard) {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
  }
  document.addEventListener("click", async ({ target }) => {
    const button = target.closest?.("button[data-copy]");
    if (!button) {
      return;
    }
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      announcement.textContent = "The browser does not allow to copy.";
      return;
    }
    const name = button.textContent;
    announcement.textContent = "Copied.";
    button.textContent = "Copied";
    setTimeout(() => {
      button.textContent = name;
      announcement.textContent = "";
    }, 1500);
  });
}

// ── keyboard ────────────────────────────────────────────────────────────────────────────────────────

// `/` leads to the search field.
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  if (event.target.closest("input, select, textarea, [contenteditable]")) {
    return;
  }
  const field = document.querySelector("input[type=search]");
  if (field) {
    event.preventDefault();
    field.focus();
    field.select();
  }
});
