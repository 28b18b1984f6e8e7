// Tables: a click on a heading sorts; a table can be saved as CSV; the jobs of all runs are unpacked and shown.
(function () {
  const numeric = (text) => (text !== "" && isFinite(text) ? Number(text) : NaN);
  function compared(a, b, down) {
    const x = numeric(a), y = numeric(b);
    if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;  // what has no number stands last, either way round
    const order = isNaN(x) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
    return down ? -order : order;
  }
  const valueOf = (cell) => (cell.dataset.value !== undefined ? cell.dataset.value : cell.textContent.trim());
  function sortable(table, sorted) {
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, i) => head.querySelector("button").addEventListener("click", function () {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((each) => each.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sorted(i, down);
    }));
  }
  // A spreadsheet computes a text that begins so; an apostrophe makes it a text again. Numbers stay numbers.
  const defused = (text) => (/^[=+\-@\t\r]/.test(text) && isNaN(numeric(text)) ? "'" + text : text);
  function quoted(text) {
    const safe = defused(text);
    return /[",\n\r]/.test(safe) ? '"' + safe.replace(/"/g, '""') + '"' : safe;
  }
  const csv = (rows) => rows.map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  function save(text, name, type) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  function button(text, does) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", does);
    return made;
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    const body = table.tBodies[0];
    sortable(table, function (i, down) {
      const rows = Array.from(body.rows);
      rows.sort((a, b) => compared(valueOf(a.cells[i]), valueOf(b.cells[i]), down));
      body.append(...rows);
    });
    const tools = document.createElement("div");
    tools.className = "tools";
    tools.append(button("Save as CSV", function () {
      const lines = Array.from(table.rows).map((row) => Array.from(row.cells).map(valueOf));
      save(csv(lines), table.dataset.name + ".csv", "text/csv");
    }));
    table.parentElement.after(tools);
  });

  // The jobs of all runs: a CSV that is packed inside the page.
  const jobs = document.getElementById("jobs");
  if (!jobs) return;
  function parsed(text) {
    const rows = [[]];
    const parts = /("(?:[^"]|"")*"|[^,\r\n]*)(,|\r?\n|$)/g;
    for (let found = parts.exec(text); found && parts.lastIndex <= text.length; found = parts.exec(text)) {
      const cell = found[1];
      rows[rows.length - 1].push(cell[0] === '"' ? cell.slice(1, -1).replace(/""/g, '"') : cell);
      if (found[2] === "") break;
      if (found[2] !== ",") rows.push([]);
    }
    return rows.filter((row) => row.length > 1);
  }
  async function unpacked() {
    const bytes = Uint8Array.from(atob(jobs.querySelector("script").textContent.trim()), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }
  function show(text) {
    const [head, ...rows] = parsed(text);
    const at = (name) => head.indexOf(name);
    const runs = Array.from(new Set(rows.map((row) => row[0])));
    const table = jobs.querySelector("table"), tools = jobs.querySelector(".tools"), told = jobs.querySelector(".told");
    const choice = document.createElement("select"), word = document.createElement("input");
    [["", "JCT in all runs"], ...runs.map((run) => [run, run])].forEach(([value, name]) => choice.add(new Option(name, value)));
    word.type = "search";
    word.placeholder = "id or model";
    const labelled = function (name, part) {
      const label = document.createElement("label");
      label.append(name, part);
      return label;
    };
    let most = 25, order = null;
    const FIRST = ["id", "model", "asked_gpus", "arrival_s"];
    const REST = ["queueing_s", "jct_s", "stretch", "gpu_s", "n_preemptions", "n_rescales", "n_failures"];
    function view() {
      if (choice.value) {
        const columns = [...FIRST, ...REST].filter((name) => at(name) >= 0);
        return [columns, rows.filter((row) => row[0] === choice.value).map((row) => columns.map((name) => row[at(name)]))];
      }
      const byJob = new Map();
      rows.forEach(function (row) {
        const key = row[at("job")];
        if (!byJob.has(key)) byJob.set(key, [...FIRST.map((name) => row[at(name)]), ...runs.map(() => "")]);
        byJob.get(key)[FIRST.length + runs.indexOf(row[0])] = row[at("jct_s")];
      });
      return [[...FIRST, ...runs.map((run) => "JCT " + run + " (s)")], Array.from(byJob.values())];
    }
    const heading = (name) => name.replace(/^n_/, "").replace(/_s$/, " (s)").replace("asked_gpus", "GPUs").replace("jct", "JCT").replace("gpu (s)", "GPU-seconds");
    const digits = (name) => ({ minimumFractionDigits: /_s$|\(s\)$|stretch/.test(name) ? 2 : 0, maximumFractionDigits: 2 });
    const written = (text, name) => (text === "" ? "\u2013" : isNaN(numeric(text)) ? text : Number(text).toLocaleString("en", digits(name)));
    function draw() {
      const [columns, all] = view();
      const wanted = word.value.toLowerCase();
      const found = all.filter((row) => (row[0] + " " + row[1]).toLowerCase().includes(wanted));
      if (order) found.sort((a, b) => compared(a[order[0]], b[order[0]], order[1]));
      table.tHead.rows[0].replaceChildren(...columns.map(function (name, i) {
        const cell = document.createElement("th");
        cell.scope = "col";
        if (i < 2) cell.className = "word";
        cell.setAttribute("aria-sort", order && order[0] === i ? (order[1] ? "descending" : "ascending") : "none");
        cell.append(button(heading(name), () => {}));
        return cell;
      }));
      sortable(table, function (i, down) { order = [i, down]; draw(); });
      table.tBodies[0].replaceChildren(...found.slice(0, most).map(function (row) {
        const line = document.createElement("tr");
        line.append(...row.map(function (text, i) {
          const cell = document.createElement(i ? "td" : "th");
          if (i === 1) cell.className = "word";
          cell.textContent = i > 1 ? written(text, columns[i]) : text;
          return cell;
        }));
        return line;
      }));
      told.textContent = Math.min(most, found.length) + " of " + found.length.toLocaleString("en") + " jobs shown";
    }
    choice.addEventListener("change", function () { order = null; draw(); });
    word.addEventListener("input", draw);
    tools.append(labelled("Show", choice), labelled("Find", word), button("Show 500 more", function () { most += 500; draw(); }),
      button("Save all runs as CSV", () => save(csv([head, ...rows]), "jobs.csv", "text/csv")));
    draw();
  }
  unpacked().then(show).catch((error) => { jobs.querySelector(".told").textContent = "The jobs cannot be unpacked here: " + error; });
})();
