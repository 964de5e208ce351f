// Show the progress of a task without loading the page again. When the task ends, the page is loaded once more.

const panel = document.querySelector("[data-task]");
const text = panel.querySelector("[data-text]");
const bar = panel.querySelector("progress");

async function update() {
  try {
    const answer = await fetch(panel.dataset.task, { cache: "no-store" });
    if (answer.status === 401) {
      const login = document.createElement("a");
      login.href = location.href; // the login leads back to this page
      login.textContent = "Log in again";
      text.replaceChildren("Your session has ended. The task goes on. ", login);
      return;
    }
    const state = await answer.json();
    if (!state.running) {
      location.reload();
      return;
    }
    if (text.textContent !== state.text) {
      text.textContent = state.text;
      bar.setAttribute("aria-label", state.text);
    }
    if (state.total !== null) {
      bar.max = Math.max(state.total, 1);
      bar.value = state.done;
    }
  } catch {
    text.textContent = "The console does not answer. The page tries again.";
  }
  setTimeout(update, 500);
}

setTimeout(update, 500);
