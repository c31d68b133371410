// Starts `heat`, polls its status at the interval of each reply, and draws the newest frame. Plain fetch, no build step.
const canvas = document.getElementById("plate"), said = document.getElementById("said"), cancel = document.getElementById("cancel");
const simulation = { simulationType: "heat", simulationId: canvas.dataset.plate, report: "heatAnimation" };
let asking = 0, next = null;

async function post(route, body) {
  const answer = await fetch("/jobs/" + route, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  const reply = await answer.json();
  if (!answer.ok) throw new Error(reply.error);
  return reply;
}

async function watch(route, body) {
  const mine = ++asking;
  let drawn = -1;
  try {
    for (let reply = await post(route, body); mine === asking; reply = await post("run-status", next)) {
      said.textContent = reply.state + (reply.percentComplete ? `, ${Math.round(reply.percentComplete)} %` : "") + (reply.error ? `: ${reply.error}` : "");
      next = reply.nextRequest;
      cancel.disabled = !next;
      if (reply.frameCount - 1 > drawn) draw(await frame((drawn = reply.frameCount - 1), reply));
      if (!next) return;
      await new Promise((done) => setTimeout(done, 1000 * reply.nextRequestSeconds));
    }
  } catch (error) {
    if (mine === asking) said.textContent = error.message;
  }
}

async function frame(index, { computeJobHash, computeJobSerial }) {
  const { simulationType, simulationId, report } = simulation;
  const answer = await fetch("/jobs/simulation-frame/" + [index, report, simulationId, simulationType, computeJobHash, computeJobSerial].join("*"));
  const reply = await answer.json();
  if (!answer.ok) throw new Error(reply.error);
  return reply;
}

function draw({ zMatrix, zRange }) {
  const rows = zMatrix.length, columns = zMatrix[0].length;
  const [low, high] = zRange ?? [Math.min(...zMatrix.flat()), Math.max(...zMatrix.flat())];
  canvas.width = columns;
  canvas.height = rows;
  const picture = new ImageData(columns, rows);
  zMatrix.forEach((row, y) => row.forEach((z, x) => {
    const heat = high > low ? (z - low) / (high - low) : 0;
    picture.data.set([255 * heat, 64 * heat, 255 * (1 - heat), 255], 4 * ((rows - 1 - y) * columns + x));
  }));
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

if (canvas) {
  document.getElementById("start").onclick = () => {
    const hotSpots = Number(document.getElementById("hotSpots").value);
    watch("run-simulation", { ...simulation, models: { heatAnimation: { hotSpots, frames: 150, steps: 4, paceSecs: 0.1 } } });
  };
  cancel.onclick = () => post("run-cancel", next).then(() => (said.textContent = "canceled"), (error) => (said.textContent = error.message));
  watch("run-status", simulation);
}
