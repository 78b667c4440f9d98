// The newest video of each policy. Nothing moves by itself for those who asked their system for less
// motion, and everything can be held: a GIF has no controls of its own, so its first frame stands in.

import { runPath } from "./api.js";
import { setTimeAgo } from "./clock.js";
import { h, keyed } from "./dom.js";

const stillness = matchMedia("(prefers-reduced-motion: reduce)");

export class Videos {
  constructor(run) {
    this._run = run;
    this.element = h("div", { class: "videos" });
  }

  update(videos) {
    const newest = new Map();
    for (const video of videos) {
      const other = newest.get(video.policy);
      if (!other || other.made_at <= video.made_at) newest.set(video.policy, video);
    }
    keyed(
      this.element,
      [...newest.values()],
      (video) => `${video.policy} ${video.file} ${video.made_at}`,
      (video) => this._figure(video),
    );
  }

  _figure(video) {
    const source = `${runPath(this._run, "videos", video.file)}?made=${video.made_at}`;
    const made = h("time", { class: "note" });
    setTimeAgo(made, video.made_at);
    return h(
      "figure",
      { class: "video", dataset: { testid: "video" } },
      video.kind === "mp4" ? film(source, video.policy) : animation(source, video.policy),
      h("figcaption", {}, h("span", { class: "clip", title: video.policy }, video.policy), made),
    );
  }
}

function film(source, policy) {
  return h("video", {
    src: source,
    controls: true,
    loop: true,
    muted: true,
    playsinline: true,
    preload: "metadata",
    autoplay: !stillness.matches,
    "aria-label": `Video of ${policy}`,
  });
}

function animation(source, policy) {
  const image = h("img", { src: source, alt: `Video of ${policy}`, loading: "lazy" });
  const still = h("canvas", { hidden: true, role: "img", "aria-label": `A frame of ${policy}` });
  const button = h("button", { type: "button", class: "video-button" }, "Hold");
  const play = (moving) => {
    if (!moving && image.naturalWidth) {
      still.width = image.naturalWidth;
      still.height = image.naturalHeight;
      still.getContext("2d").drawImage(image, 0, 0);
    }
    image.hidden = !moving;
    still.hidden = moving;
    button.textContent = moving ? "Hold" : "Play";
    button.setAttribute("aria-label", `${button.textContent} the video of ${policy}`);
  };
  button.addEventListener("click", () => play(image.hidden));
  image.addEventListener("load", () => stillness.matches && play(false), { once: true });
  image.addEventListener("error", () => {
    image.hidden = true;
    button.replaceWith(h("p", { class: "empty" }, "This video could not be loaded."));
  });
  return h("div", { class: "animation" }, image, still, button);
}
