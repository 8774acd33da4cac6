// Asks for the main part of the page twice a second, and shows what is new of it. What the reader has opened, focused and
// scrolled stays as it is.
"use strict";

const EVERY_MS = 500;
const main = document.querySelector("main");
const live = document.getElementById("live");
let tag = null;

function say(text) {
  if (live.textContent !== text) live.textContent = text;
}

function show(html) {
  const open = [...main.querySelectorAll("details[open]")].map((each) => each.id);
  const regions = [...main.querySelectorAll("[role=region]")].map((each) => [
    each.getAttribute("aria-label"), each.scrollLeft, each === document.activeElement,
  ]);
  const link = main.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  main.innerHTML = html;
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  for (const [label, left, focused] of regions) {
    const region = main.querySelector(`[role=region][aria-label="${CSS.escape(label)}"]`);
    if (!region) continue;
    region.scrollLeft = left;
    if (focused) region.focus({ preventScroll: true });
  }
  if (link) main.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
}

async function refresh() {
  try {
    const answer = await fetch(`${location.pathname}?part=main`, {
      headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store",
    });
    if (answer.status === 200) {
      tag = answer.headers.get("ETag");
      show(await answer.text());
    }
    say(answer.status < 400 ? "Live: what is new appears by itself." : `The dashboard answers with ${answer.status}.`);
  } catch {
    say(`The dashboard does not answer since ${new Date().toLocaleTimeString()}: is it still running?`);
    tag = null;
    await new Promise((resolve) => setTimeout(resolve, 4 * EVERY_MS));
  }
  setTimeout(refresh, EVERY_MS);
}

refresh();
