// Light or dark as Airflow is, numbers that move, questions before acts, and links that leave the frame. Everything works without it but these.
"use strict";

function followTheme() {
  const said = localStorage.getItem("theme");
  const dark = said === "dark" || (said !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  const theme = dark ? "dark" : "light";
  if (document.documentElement.dataset.theme !== theme) {
    document.documentElement.dataset.theme = theme;
    document.cookie = `weir_theme=${theme}; path=/; SameSite=Lax`;
  }
}

function refresh(live) {
  const seconds = Number(live.dataset.live);
  const again = () => setTimeout(() => refresh(live), seconds * 1000);
  const busy = document.hidden || live.contains(document.activeElement) && document.activeElement.matches("input, select, textarea") || live.querySelector("[data-asked]");
  if (busy) return again();
  const address = new URL(location.href);
  address.searchParams.set("live", "1");
  address.searchParams.delete("told");
  fetch(address, { headers: { Accept: "text/html" }, credentials: "same-origin" })
    .then((answer) => (answer.ok ? answer.text() : Promise.reject(answer.status)))
    .then((html) => {
      const held = document.activeElement && live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      live.innerHTML = html;
      live.classList.remove("old");
      if (held) live.querySelector(`a[href="${CSS.escape(held)}"]`)?.focus();
    })
    .catch(() => live.classList.add("old"))
    .finally(again);
}

// A frame may not open a dialog: the button itself asks, and the second press within a few seconds is the answer.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.dataset.confirm || form.dataset.asked) return;
  event.preventDefault();
  const button = form.querySelector("button");
  const said = button.textContent;
  form.dataset.asked = "yes";
  button.textContent = form.dataset.confirm;
  setTimeout(() => {
    delete form.dataset.asked;
    button.textContent = said;
  }, 6000);
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-airflow]");
  if (!link || window.parent === window || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const outer = window.parent.document.createElement("a");
  outer.href = link.href;
  window.parent.document.body.append(outer);
  outer.click();
  outer.remove();
});

followTheme();
addEventListener("storage", followTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", followTheme);
const live = document.querySelector("#live[data-live]");
if (live) setTimeout(() => refresh(live), Number(live.dataset.live) * 1000);
