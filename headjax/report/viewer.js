// Attention viewer: every head as a small picture, one of them enlarged, tokens that tell what they attend to, and the
// prediction with heads switched off. The data stands in the page, see headjax/head_report/study.py.

function bytesOf(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Draw weights, a row for each query; the strongest colour is the largest weight of the head.
function draw(canvas, weights, rows, columns) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), most = Math.max(...weights, 1);
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--c0");
  weights.forEach((weight, place) => {
    context.globalAlpha = weight / most;
    context.fillRect(place % columns, Math.floor(place / columns), 1, 1);
  });
}

class Viewer {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.most = Math.max(...Object.values(data.importance), 0);
    this.example = 0;
    this.off = "";
    const heads = Object.keys(data.importance);
    this.head = heads.reduce((best, head) => (data.importance[head] > data.importance[best] ? head : best), heads[0]);
    this.grid = element("div", { class: "heads", role: "group", "aria-label": "Heads" });
    this.panel = element("div", { class: "panel" });
    this.grid.addEventListener("keydown", (event) => this.move(event));
    root.append(this.choice(), this.grid, this.panel);
    this.showExample(0);
  }

  get view() { return this.data.examples[this.example]; }

  stack() { return this.view.stacks[this.head.split("/")[0]]; }

  weights(head) {
    const stack = this.view.stacks[head.split("/")[0]], size = stack.queries.length * stack.keys.length;
    stack.bytes ??= bytesOf(stack.weights);
    const place = stack.heads.indexOf(head);
    return stack.bytes.subarray(place * size, (place + 1) * size);
  }

  choice() {
    const select = element("select", {}, ...this.data.examples.map((view, number) => {
      const tokens = Object.values(view.stacks)[0].queries.join(" ");
      return element("option", { value: number }, `${number + 1}: ${tokens.slice(0, 60)}`);
    }));
    select.addEventListener("change", () => this.showExample(Number(select.value)));
    return element("label", {}, "Example ", select);
  }

  showExample(number) {
    this.example = number;
    this.query = Infinity;
    this.grid.replaceChildren();
    for (const [name, stack] of Object.entries(this.view.stacks)) {
      let row = null, last = "";
      for (const head of stack.heads) {
        const layer = head.slice(0, head.lastIndexOf("/"));
        if (layer !== last) {
          row = element("div", { class: "layer" }, element("span", {}, layer));
          this.grid.append(row);
          last = layer;
        }
        row.append(this.thumbnail(head, stack));
      }
    }
    this.showHead(this.head);
  }

  thumbnail(head, stack) {
    const canvas = element("canvas", { "aria-hidden": "true" });
    draw(canvas, this.weights(head), stack.queries.length, stack.keys.length);
    const importance = this.data.importance[head], bar = element("i", {});
    bar.style.width = `${(100 * importance) / (this.most || 1)}%`;
    const label = `${head}, importance ${importance.toPrecision(2)}`;
    const button = element("button", { type: "button", "data-head": head, "aria-label": label, title: label }, canvas, bar);
    button.addEventListener("click", () => this.showHead(head));
    return button;
  }

  // Arrow keys move between heads: left and right within a layer, up and down between layers.
  move(event) {
    const rows = [...this.grid.children].map((row) => [...row.querySelectorAll("button")]);
    const y = rows.findIndex((row) => row.includes(document.activeElement));
    const [right, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [];
    if (y < 0 || right === undefined) return;
    event.preventDefault();
    const row = rows[Math.min(Math.max(y + down, 0), rows.length - 1)];
    const x = rows[y].indexOf(document.activeElement) + right;
    const next = row[Math.min(Math.max(x, 0), row.length - 1)];
    this.showHead(next.dataset.head);
    next.focus();
  }

  showHead(head) {
    this.head = head;
    for (const button of this.grid.querySelectorAll("button")) {
      const chosen = button.dataset.head === head;
      button.setAttribute("aria-pressed", chosen);
      button.tabIndex = chosen ? 0 : -1;
    }
    const stack = this.stack(), picture = element("canvas", { class: "large", role: "img", "aria-label": `Attention of ${head}` });
    draw(picture, this.weights(head), stack.queries.length, stack.keys.length);
    this.query = Math.min(this.query, stack.queries.length - 1);
    this.queries = element("div", { class: "tokens", role: "group", "aria-label": "Tokens that attend" });
    stack.queries.forEach((token, number) => {
      const button = element("button", { type: "button" }, token);
      for (const name of ["pointerenter", "focus", "click"]) button.addEventListener(name, () => this.showQuery(number));
      this.queries.append(button);
    });
    this.keys = element("ol", { class: "keys", "aria-live": "polite" });
    this.outcome = element("p", { class: "outcome", role: "status" });
    this.panel.replaceChildren(
      element("h3", {}, `${head}, importance ${this.data.importance[head].toPrecision(2)}`),
      this.switches(), this.outcome,
      element("div", { class: "large" }, picture, element("div", {}, element("p", {}, "Point at a token to see what it attends to:"), this.queries, this.keys)),
    );
    this.showQuery(this.query);
    this.showOutcome();
  }

  // Predictions are stored with one head or one layer off, so one switch is on at a time.
  switches() {
    const layer = this.head.slice(0, this.head.lastIndexOf("/"));
    const choices = [["", "All heads on"], [this.head, `${this.head} off`], [layer, `All heads of ${layer} off`]];
    if (!choices.some(([off]) => off === this.off)) this.off = "";
    const buttons = choices.map(([off, text]) => {
      const button = element("button", { type: "button", "data-off": off, "aria-pressed": off === this.off }, text);
      button.addEventListener("click", () => {
        this.off = off;
        for (const other of buttons) other.setAttribute("aria-pressed", other === button);
        this.showOutcome();
      });
      return button;
    });
    return element("div", { class: "switches", role: "group", "aria-label": "Heads switched off" }, ...buttons);
  }

  showOutcome() {
    const whole = this.view.whole, without = this.view.without[this.off];
    const change = without && `${this.data.unit}: ${without.change.toPrecision(2)}`;
    const words = without ? [without.prediction && `${without.prediction}, with all heads ${whole}`, change] : [whole];
    this.outcome.textContent = `Prediction: ${words.filter(Boolean).join("; ") || "an embedding, which has no words"}`;
  }

  showQuery(number) {
    this.query = number;
    const stack = this.stack(), columns = stack.keys.length;
    const row = this.weights(this.head).subarray(number * columns, (number + 1) * columns);
    [...this.queries.children].forEach((button, place) => button.setAttribute("aria-pressed", place === number));
    this.keys.replaceChildren(...stack.keys.map((token, place) => {
      const share = row[place] / 255, bar = element("i", {});
      bar.style.width = `${100 * share}%`;
      return element("li", {}, element("span", {}, token), element("b", {}, `${Math.round(100 * share)}%`), bar);
    }));
  }
}

for (const root of document.querySelectorAll(".viewer")) {
  new Viewer(root, JSON.parse(root.querySelector("script").textContent));
}
