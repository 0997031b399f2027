// SPDX-License-Identifier: Apache-2.0
(() => {
  const copy = b => navigator.clipboard.writeText(b.dataset.command).then(() => {
    const was = b.textContent; b.textContent = "copied"; setTimeout(() => { b.textContent = was; }, 1200); });
  document.querySelectorAll("[data-command]").forEach(b => b.addEventListener("click", () => copy(b)));
  const table = document.getElementById("candidates"), body = table && table.tBodies[0];
  if (!table) return;
  table.querySelectorAll("th").forEach((th, i) => { th.tabIndex = 0;
    const sort = () => {
      const up = th.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("th").forEach(o => o.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", up ? "ascending" : "descending");
      const of = r => r.cells[i].dataset.v ?? r.cells[i].textContent;
      [...body.rows].sort((a, b) => {
        const x = of(a), y = of(b), n = parseFloat(x) - parseFloat(y);
        return (up ? 1 : -1) * (Number.isNaN(n) ? x.localeCompare(y) : n);
      }).forEach(r => body.append(r));
    };
    th.addEventListener("click", sort); th.addEventListener("keydown", e => e.key === "Enter" && sort()); });
  const pick = document.getElementById("pick"), shown = document.getElementById("shown");
  const apply = () => {
    const words = pick.value.toLowerCase().split(/\s+/).filter(Boolean); let n = 0;
    for (const r of body.rows) { const t = r.textContent.toLowerCase(); r.hidden = !words.every(w => t.includes(w)); n += !r.hidden; }
    shown.textContent = n + " shown";
  };
  pick.addEventListener("input", apply); apply();
})();
