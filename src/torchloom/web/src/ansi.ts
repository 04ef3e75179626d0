// ANSI colours of a log line as classes; every other control sequence is dropped. Text stays text: nothing of a line
// is ever taken for HTML.

export interface Piece {
  text: string;
  look: string;
}

// eslint-disable-next-line no-control-regex
const SEQUENCE = /\x1b\[([0-9;]*)m|\x1b\[[0-9;?]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;
const LONGEST = 4000;

export function pieces(line: string): Piece[] {
  const text = line.length > LONGEST ? `${line.slice(0, LONGEST)} … ${line.length - LONGEST} more characters` : line;
  if (!/[\x00-\x1f\x7f]/.test(text)) return [{ text, look: "" }];
  const made: Piece[] = [];
  let look = new Set<string>();
  let last = 0;
  for (const found of text.matchAll(SEQUENCE)) {
    if (found.index > last) made.push({ text: text.slice(last, found.index), look: [...look].join(" ") });
    last = found.index + found[0].length;
    if (found[1] !== undefined) look = next(look, found[1]);
  }
  if (last < text.length) made.push({ text: text.slice(last), look: [...look].join(" ") });
  return made;
}

function next(look: Set<string>, codes: string): Set<string> {
  const made = new Set(look);
  const all = codes.split(";").map(Number);
  for (let at = 0; at < all.length; at++) {
    const code = all[at]!;
    if (code === 0) made.clear();
    else if (code === 1) made.add("ab");
    else if (code === 2) made.add("ad");
    else if (code === 4) made.add("au");
    else if (code === 22) (made.delete("ab"), made.delete("ad"));
    else if (code === 24) made.delete("au");
    else if (code === 38 || code === 48) at += all[at + 1] === 5 ? 2 : 4;
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97) || code === 39) {
      for (const one of [...made]) if (/^a\d/.test(one)) made.delete(one);
      if (code !== 39) made.add(`a${code}`);
    }
  }
  return made;
}
