"use strict";
document.getElementById("scheme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.scheme
    ? root.dataset.scheme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.scheme = dark ? "light" : "dark";
});

// Elements are made by hand, and texts put in as texts: rows may hold anything.
function make(tag, attributes = {}, ...inside) {
  const svg = ["svg", "path", "line", "text", "g"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inside.filter((one) => one !== null));
  return element;
}

// Where a token is asked for, it is kept as long as this tab is open.
let token = sessionStorage.getItem("token");
async function ask(path, body) {
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  const reply = await fetch(path, body === undefined ? { headers } : { headers, method: "POST", body: JSON.stringify(body) });
  document.getElementById("token").classList.toggle("off", reply.status !== 401);
  return { status: reply.status, content: await reply.json() };
}
function trouble(words) {
  const place = document.getElementById("trouble");
  place.textContent = words;
  place.hidden = words === "";
}
document.getElementById("token").addEventListener("submit", (event) => {
  event.preventDefault();
  token = document.getElementById("secret").value;
  sessionStorage.setItem("token", token);
  refresh();
});
