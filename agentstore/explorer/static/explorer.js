// Keys: / searches, j and k move among what can be opened, Enter opens it. All works without, too.
"use strict";
(() => {
  const rows = () => [...document.querySelectorAll("[data-row]")];
  const here = () => document.querySelector("[data-row].here");

  // Where what the address points to is, or else what is seen first below the head.
  function begin(all) {
    const aimed = all.findIndex((each) => each.matches(":target"));
    const seen = (each) => each.getBoundingClientRect().bottom > 64;
    return aimed < 0 ? Math.max(all.findIndex(seen), 0) : aimed;
  }

  function move(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(here());
    const next = at < 0 ? begin(all) : Math.min(Math.max(at + by, 0), all.length - 1);
    all[at]?.classList.remove("here");
    all[next].classList.add("here");
    all[next].scrollIntoView({ block: "nearest" });
    const link = all[next].querySelector("a, summary");
    (link ?? all[next]).focus({ preventScroll: true });
  }

  // A tail that is exchanged leaves open what was unfolded.
  const folds = () => [...document.querySelectorAll(".split > div details")];
  let unfolded = [];
  document.addEventListener("htmx:beforeSwap", () => {
    unfolded = folds().map((each) => each.open);
  });
  document.addEventListener("htmx:afterSwap", () => {
    folds().forEach((each, n) => {
      if (n in unfolded) each.open = unfolded[n];
    });
  });

  const unfold = document.getElementById("unfold");
  if (unfold && folds().length) {
    unfold.hidden = false;
    unfold.addEventListener("click", () => {
      const open = folds().some((each) => !each.open);
      folds().forEach((each) => (each.open = open));
      unfold.textContent = open ? "Fold all" : "Expand all";
    });
  }

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing) typing.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      document.querySelector(".find input")?.focus();
    } else if (event.key === "j" || event.key === "k") {
      move(event.key === "j" ? 1 : -1);
    } else if (event.key === "Enter" && event.target === document.body) {
      here()?.querySelector("a")?.click();
    } else {
      return;
    }
    event.preventDefault();
  });
})();
