"use strict";
document.getElementById("scheme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.scheme
    ? root.dataset.scheme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.scheme = dark ? "light" : "dark";
});
