// The delay matrix as a picture: who sends to whom, and how long it takes.
import type { LinkMatrixView } from "../api";
import { span } from "../format";
import { blend, Picture, type Draw } from "./canvas";

export function Matrix({ links }: { links: LinkMatrixView }) {
  const ranks = [...new Set(links.delays.flatMap((one) => [one.sender, one.receiver]))].sort((a, b) => a - b);
  const place = new Map(ranks.map((rank, at) => [rank, at]));
  const of = (one: LinkMatrixView["delays"][number]) => one.transfer_s || one.delay_s;
  const sorted = links.delays.map(of).sort((a, b) => a - b);
  const median = sorted[sorted.length >> 1] ?? 0;
  const top = Math.max(sorted[sorted.length - 1] ?? 0, median * 2, 1e-9);
  const at = new Map(links.delays.map((one) => [`${one.sender}:${one.receiver}`, one]));
  const n = ranks.length;
  const left = 34;
  const size = (width: number) => Math.max(2, Math.min(26, Math.floor((Math.min(width, 560) - left) / Math.max(1, n))));
  const draw: Draw = (ctx, width, css) => {
    const cell = size(width);
    ctx.font = "10px system-ui";
    ctx.fillStyle = css("--dim");
    ctx.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(16 / cell));
    ranks.forEach((rank, i) => {
      if (i % every) return;
      ctx.textAlign = "right";
      ctx.fillText(String(rank), left - 5, 16 + i * cell + cell / 2);
      ctx.textAlign = "center";
      ctx.fillText(String(rank), left + i * cell + cell / 2, 8);
    });
    for (const one of links.delays) {
      const x = left + place.get(one.receiver)! * cell;
      const y = 16 + place.get(one.sender)! * cell;
      ctx.fillStyle = blend(css("--soft"), css("--accent"), of(one) / top);
      ctx.fillRect(x, y, cell - (cell > 6 ? 1 : 0), cell - (cell > 6 ? 1 : 0));
      if (of(one) > 3 * median) {
        ctx.strokeStyle = css("--bad");
        ctx.lineWidth = 2;
        ctx.strokeRect(x + 1, y + 1, cell - 3, cell - 3);
      }
    }
    return {
      at: (x, y) => {
        const found = at.get(`${ranks[Math.floor((y - 16) / cell)]}:${ranks[Math.floor((x - left) / cell)]}`);
        return found ? { x, y, text: `rank ${found.sender} → ${found.receiver}: ${span(found.delay_s)} for a message, ${span(found.transfer_s)} for a megabyte` } : null;
      },
    };
  };
  return (
    <>
      <p>{links.verdict}</p>
      <Picture height={(width) => 18 + size(width) * n} label={`Delay matrix of ${n} ranks. ${links.verdict}`} draw={draw} deps={[links]} />
      <p class="legend"><span>rows send, columns receive</span><span><i class="ramp" /> 0 to {span(top)}</span><span>median {span(median)}</span></p>
    </>
  );
}
