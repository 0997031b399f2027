// SPDX-License-Identifier: Apache-2.0
// What all views share: parts that are renewed while they change, and forms whose address follows what is typed.
// Without it every view works by its form and its address.

// A part of a view is asked for again and again while the window is seen, until it is over.
async function renew(part) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * Number(part.dataset.every)));
    if (!part.isConnected) return;
    if (document.hidden) continue;
    const found = await asked(part.dataset.part);
    if (!found) continue;
    if (found.reload) return location.reload();
    put(part, found.html);
    if (found.over) return;
  }
}

export async function asked(address, options = {}) {
  try {
    const answer = await fetch(address, options);
    if (answer.status === 403) location.reload(); // the server was started again: its page says what to do
    return answer.ok ? await answer.json() : null;
  } catch {
    return null; // it is away, or comes back
  }
}

// New HTML in the place of the old, where it differs; the focus stays on the link or field of the same place.
export function put(part, html) {
  if (part.dataset.was === html) return;
  part.dataset.was = html;
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  part.innerHTML = html;
  if (focused) part.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
}

// The address that a form leads to, without what is empty.
export function addressOf(form) {
  const said = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  return `${form.getAttribute("action")}${String(said) ? `?${said}` : ""}`;
}

// A form of a list: its address and the list follow what is typed.
function follow(form) {
  let timer = 0;
  const go = async () => {
    const address = addressOf(form), answer = await fetch(address);
    if (!answer.ok) return location.assign(address);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    history.replaceState(null, "", address);
    const old = [...form.parentNode.children], kept = old.indexOf(form);
    const fresh = [...page.querySelector("main").children], from = fresh.findIndex((each) => each.matches("form.asking"));
    for (const each of old.slice(kept + 1)) each.remove();
    form.after(...fresh.slice(from + 1));
    start(form.parentNode);
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(go, 180);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    go();
  });
}

function start(root) {
  for (const part of root.querySelectorAll("[data-part]")) renew(part);
}

// Where the views' names are wider than the window, the one that is shown is seen.
const views = document.querySelector("body > nav"), here = views?.querySelector("[aria-current]");
if (here) views.scrollLeft = here.offsetLeft - (views.clientWidth - here.offsetWidth) / 2;

for (const form of document.querySelectorAll("form[data-live]")) follow(form);
start(document);

// "/" goes to the search field, as on the page of a timeline.
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, select, textarea, .timeline")) return;
  const search = document.querySelector("input[type=search]");
  if (!search) return;
  event.preventDefault();
  search.focus();
});
