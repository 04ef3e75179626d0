// All ranks at once, one cell each: who takes longer than the others, who waits, who is lost.
import { useMemo, useRef, useState } from "preact/hooks";
import type { RanksNow } from "../api";
import { count, percent, plural, span } from "../format";
import { go, link } from "../session";
import { Section } from "./bits";
import { Picture, ramp, type Draw } from "./canvas";

type Column = "own_s" | "wait_s" | "data_s" | "lost_share";
const COLUMNS: [Column, string, string][] = [
  ["own_s", "own time", "Time of a step without waiting for other ranks"],
  ["wait_s", "waiting", "Time of a step spent waiting for other ranks"],
  ["data_s", "data", "Time of a step spent waiting for data"],
  ["lost_share", "lost share", "Share of the job's speed that is lost to this rank"],
];
const shown = (column: Column, value: number | null) => (column === "lost_share" ? percent(value) : span(value));

export function HeatMap({ job, now }: { job: string; now: RanksNow }) {
  const [column, setColumn] = useState<Column>("own_s");
  const chosen = useRef(0);
  const values = now[column];
  const stats = useMemo(() => summary(values), [values]);
  const n = now.rank.length;
  const says = COLUMNS.find(([name]) => name === column)![2];
  const worst = stats.order.slice(0, 3).map((at) => `rank ${now.rank[at]} ${shown(column, values[at] ?? null)}`);
  const draw: Draw = (ctx, width, css) => {
    const { columns, size } = grid(n, width);
    const gap = size > 6 ? 1 : 0;
    const color = ramp(css("--soft"), css(column === "lost_share" ? "--bad" : "--accent"));
    const [empty, gone, bad] = [css("--line"), css("--off"), css("--bad")];
    ctx.clearRect(0, 0, width, 1e5);
    for (let at = 0; at < n; at++) {
      const x = (at % columns) * size;
      const y = Math.floor(at / columns) * size;
      const value = values[at];
      ctx.fillStyle = value === null || value === undefined ? empty : color(stats.scale(value));
      ctx.fillRect(x, y, size - gap, size - gap);
      if (!now.alive[at]) {
        ctx.strokeStyle = gone;
        ctx.beginPath();
        ctx.moveTo(x + 1, y + 1);
        ctx.lineTo(x + size - gap - 1, y + size - gap - 1);
        ctx.moveTo(x + size - gap - 1, y + 1);
        ctx.lineTo(x + 1, y + size - gap - 1);
        ctx.stroke();
      } else if (value !== null && value !== undefined && stats.stands(value)) {
        ctx.strokeStyle = bad;
        ctx.lineWidth = size > 8 ? 2 : 1;
        ctx.strokeRect(x + 1, y + 1, Math.max(1, size - gap - 2), Math.max(1, size - gap - 2));
      }
    }
    const tip = (at: number) => {
      if (at < 0 || at >= n) return null;
      chosen.current = at;
      const word = now.alive[at] ? now.phases[now.phase[at]!] || "no news" : "ended";
      return {
        x: (at % columns) * size + size / 2,
        y: Math.floor(at / columns) * size + size / 2,
        text: `rank ${now.rank[at]} · ${now.nodes[now.node[at]!]} · ${shown(column, values[at] ?? null)} · step ${count(now.step[at])} · ${word}`,
      };
    };
    const found = (x: number, y: number) => (x < 0 || x >= columns * size ? -1 : Math.floor(y / size) * columns + Math.floor(x / size));
    return {
      at: (x, y) => tip(found(x, y)),
      click: (x, y) => {
        const at = found(x, y);
        if (at >= 0 && at < n) go(`${link("job", job, "logs")}?rank=${now.rank[at]}`);
      },
      key: (key) => {
        const by: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
        if (key === "Enter") go(`${link("job", job, "logs")}?rank=${now.rank[chosen.current]}`);
        return by[key] === undefined ? null : tip(Math.max(0, Math.min(n - 1, chosen.current + by[key]!)));
      },
    };
  };
  return (
    <Section
      id="ranks"
      title={plural(n, "rank")}
      aside={
        <div class="choice" role="group" aria-label="What the cells show">
          {COLUMNS.map(([name, word]) => <button key={name} type="button" aria-pressed={name === column} onClick={() => setColumn(name)}>{word}</button>)}
        </div>
      }
    >
      <Picture
        height={(width) => Math.ceil(n / grid(n, width).columns) * grid(n, width).size}
        label={`${says}, for ${plural(n, "rank")}: median ${shown(column, stats.median)}, highest ${worst.join(", ")}. Arrow keys move from rank to rank, Enter opens its log.`}
        draw={draw}
        deps={[now, column]}
      />
      <p class="legend">
        <span>{says}: median <b>{shown(column, stats.median)}</b></span>
        <span>highest {worst.join(" · ") || "–"}</span>
        <span><Ramp bad={column === "lost_share"} /> {shown(column, stats.low)} to {shown(column, stats.high)}</span>
        {stats.outliers > 0 && <span><i class="outlined" /> {plural(stats.outliers, "rank")} far above the median</span>}
      </p>
    </Section>
  );
}

function Ramp({ bad }: { bad: boolean }) {
  return <i class={bad ? "ramp bad" : "ramp"} />;
}

function grid(n: number, width: number): { columns: number; size: number } {
  // At most 420 px high; cells between 3 and 26 px.
  const size = Math.max(3, Math.min(26, Math.floor(Math.sqrt((width * 420) / n))));
  return { columns: Math.max(1, Math.floor(width / size)), size };
}

function summary(values: (number | null)[]) {
  const told = values.filter((v): v is number => v !== null).sort((a, b) => a - b);
  const low = told[0] ?? 0;
  const high = told[told.length - 1] ?? 0;
  const median = told[told.length >> 1] ?? null;
  // The scale begins at zero, so that equal ranks look equal and noise is not made into a picture.
  const top = Math.max(high, (median ?? 0) * 1.5, 1e-9);
  const limit = Math.max((median ?? 0) * 1.5, (median ?? 0) + 0.005);
  const stands = (value: number) => told.length > 2 && value > limit;
  const order = values.map((v, at) => [v ?? -1, at] as const).filter(([v]) => v >= 0).sort((a, b) => b[0] - a[0]).map(([, at]) => at);
  return { low, high, median, scale: (v: number) => v / top, stands, order, outliers: told.filter(stands).length };
}
