// SPDX-License-Identifier: Apache-2.0
// A question and its answer: sliders beside fields, an address that follows them, progress, and a way to stop.
(() => {
  const form = document.querySelector("form[data-question]"), answer = document.querySelector("[data-answer]");
  if (!form || !answer) return;
  const part = answer.dataset.answer, PATIENT_MS = 1500;
  let number = 0, running = null; // the question that is being answered: its query, and since when

  // -- sliders -------------------------------------------------------------------------------------------------------
  const kinds = {
    power: { to: (place) => String(2 ** place), from: (text) => Math.round(Math.log2(Number(text))) },
    days: { to: (place) => `${place}d`, from: (text) => (/^[\d.]+d$/.test(text) ? Math.round(parseFloat(text)) : NaN) },
    seconds: { to: (place) => `${place}s`, from: (text) => (/^[\d.]+s$/.test(text) ? Math.round(parseFloat(text)) : NaN) },
    share: { to: (place) => String(place / 100), from: (text) => Math.round(100 * Number(text)) },
    count: { to: (place) => String(place), from: (text) => Math.round(Number(text)) },
    dollars: { to: (place) => String(place), from: (text) => Math.round(Number(text)) },
  };
  for (const input of form.querySelectorAll("[data-slider]")) {
    const kind = kinds[input.dataset.slider], least = Number(input.dataset.least), most = Number(input.dataset.most);
    const open = input.placeholder !== ""; // the leftmost place says nothing
    const slider = document.createElement("input");
    Object.assign(slider, { type: "range", min: open ? least - 1 : least, max: most, step: 1 });
    slider.setAttribute("aria-label", input.parentNode.firstChild.textContent.trim());
    const place = () => {
      const at = input.value === "" ? NaN : kind.from(input.value);
      slider.value = Number.isFinite(at) ? at : slider.min;
      slider.setAttribute("aria-valuetext", input.value || input.placeholder);
    };
    slider.addEventListener("input", () => {
      input.value = open && Number(slider.value) < least ? "" : kind.to(Number(slider.value));
      slider.setAttribute("aria-valuetext", input.value || input.placeholder);
    });
    input.addEventListener("input", place);
    place();
    input.after(slider);
  }

  // -- asking --------------------------------------------------------------------------------------------------------
  const query = () => String(new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== "")));

  async function ask() {
    const mine = ++number, said = query(), address = `${form.getAttribute("action")}?${said}`;
    if (running && running.said !== said && performance.now() - running.since > PATIENT_MS) stop(running.said);
    running = { said, since: performance.now() };
    if (location.search !== `?${said}`) history.replaceState(null, "", address);
    answer.classList.add("stale");
    while (mine === number) {
      const told = await get(`${part}?${said}`);
      if (mine !== number) return;
      if (!told) await new Promise((resolve) => setTimeout(resolve, 1000));
      else if (told.over) return finish(told);
      else progress(told, said);
      await new Promise((resolve) => setTimeout(resolve, 60));
    }
  }

  async function get(address) {
    try {
      const found = await fetch(address, { method: form.dataset.question === "press" ? "POST" : "GET" });
      return found.ok ? await found.json() : null;
    } catch {
      return null;
    }
  }

  function stop(said) {
    return fetch(`${part.replace(/part$/, "cancel")}?${said}`, { method: "POST" }).catch(() => {});
  }

  function finish(told) {
    running = null;
    answer.classList.remove("stale");
    answer.dataset.seconds = told.seconds ?? "";
    answer.innerHTML = told.html || '<p class="say">Cancelled. Move anything, or press the button, to ask again.</p>';
    if (answer.querySelector(".timeline")) return location.reload(); // whose scripts start with the page
    for (const name of told.scripts || []) {
      const script = document.createElement("script"); // what the answer's tables need, once more for the new ones
      script.src = `/assets/${name}`;
      answer.append(script);
    }
    performance.mark("answered");
  }

  const plain = (number) => Number(number.replaceAll(",", ""));

  function progress(told, said) {
    const seconds = Math.round(told.seconds);
    if (seconds < 1 && !told.lines.length) return;
    let box = answer.querySelector(".working");
    if (!box) {
      box = document.createElement("div");
      box.className = "working";
      box.setAttribute("role", "status");
      box.innerHTML = '<p></p><progress></progress><ol></ol><button class="plain" type="button">Cancel</button>';
      answer.prepend(box);
    }
    if (!box.querySelector("button")) {
      const button = document.createElement("button");
      Object.assign(button, { className: "plain", type: "button", textContent: "Cancel" });
      box.append(button);
    }
    box.querySelector("button").onclick = async () => {
      number++;
      await stop(said);
      finish({});
    };
    box.querySelector("p").textContent = `${answer.dataset.doing}: ${seconds} s`;
    const far = told.lines.map((line) => /^([\d,]+) of ([\d,]+)/.exec(line)).filter(Boolean).pop();
    if (far) Object.assign(box.querySelector("progress"), { max: plain(far[2]), value: plain(far[1]) });
    const list = box.querySelector("ol");
    list.replaceChildren(...told.lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
    list.scrollTop = list.scrollHeight;
  }

  let timer = 0;
  form.addEventListener("input", () => {
    if (form.dataset.question !== "yes") return;
    clearTimeout(timer);
    timer = setTimeout(ask, 120);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    ask();
  });
  if (answer.dataset.working) ask();
})();
