async function refresh() {
  const { status, content } = await ask("/openapi.json");
  if (status !== 200) return;
  const main = document.getElementById("main");
  main.replaceChildren();
  for (const [path, operations] of Object.entries(content.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const box = make("details", { class: "method" });
      box.append(make("summary", {}, make("span", { class: "label" }, `${method.toUpperCase()} ${path}`), operation.summary));
      const inside = make("div", { class: "whole" });
      const body = operation.requestBody;
      if (body) {
        const [kind, taken] = Object.entries(body.content)[0];
        inside.append(make("h3", {}, `Takes ${kind}`), make("pre", {}, JSON.stringify(taken.schema, null, 2)));
      }
      for (const [code, reply] of Object.entries(operation.responses)) {
        const schema = Object.values(reply.content)[0].schema;
        inside.append(make("h3", {}, `${code}: ${reply.description}`), make("pre", {}, JSON.stringify(schema, null, 2)));
      }
      box.append(inside);
      main.append(box);
    }
  }
}
refresh();
