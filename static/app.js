// The little behaviour the pages need beside htmx: theme, confirmations, live updates, logs that follow their end.
(() => {
  "use strict";

  // Theme: what the system wants until a person says otherwise.
  const root = document.documentElement;
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = () => root.dataset.theme || (systemDark.matches ? "dark" : "light");

  const showTheme = () => {
    for (const button of document.querySelectorAll("[data-theme-toggle]")) {
      const next = theme() === "dark" ? "light" : "dark";
      button.setAttribute("aria-label", `Switch to ${next} mode`);
      button.title = `Switch to ${next} mode`;
    }
    document.dispatchEvent(new CustomEvent("themechange"));
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-theme-toggle]");
    if (!button) return;
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    localStorage.setItem("loadmaster-theme", root.dataset.theme);
    showTheme();
  });
  systemDark.addEventListener("change", showTheme);

  // On a narrow screen the pages' names scroll: the one we are on is shown.
  document.querySelector(".nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });

  // Confirmation: a form with data-confirm asks first. Without a dialog element the form is simply sent.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    const dialog = document.getElementById("confirm");
    if (!form.dataset.confirm || form.dataset.confirmed || !dialog) return;
    event.preventDefault();
    dialog.querySelector("[data-question]").textContent = form.dataset.confirm;
    const yes = dialog.querySelector("[value=yes]");
    yes.textContent = form.dataset.confirmYes || "Yes";
    dialog.returnValue = "";
    dialog.onclose = () => {
      if (dialog.returnValue !== "yes") return;
      form.dataset.confirmed = "1";
      form.requestSubmit(event.submitter);
    };
    dialog.showModal();
  });

  // A refresh must not take away what a person is about to use, so it waits while a field has the focus or text is marked.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const part = event.target;
    if (!part.matches("[data-live]")) return;
    const focused = document.activeElement;
    const marked = window.getSelection();
    const reading = !marked.isCollapsed && part.contains(marked.anchorNode);
    if (reading || (part.contains(focused) && focused.matches("input, select, textarea"))) event.preventDefault();
  });

  // Logs follow their end unless the reader has scrolled up.
  let following = true;
  let place = 0;
  const log = () => document.querySelector("[data-follow]");
  const toEnd = () => {
    const box = log();
    if (box) box.scrollTop = following ? box.scrollHeight : place;
  };
  document.addEventListener("htmx:beforeSwap", () => {
    const box = log();
    if (!box) return;
    following = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    place = box.scrollTop;
  });
  document.addEventListener("htmx:afterSettle", toEnd);

  // Live updates: the server names the topics that changed; the parts of the page that show them ask for themselves anew.
  const listen = () => {
    const url = document.body.dataset.live;
    if (!url || !("EventSource" in window)) return;
    const source = new EventSource(url);
    const status = document.querySelector("[data-live-status]");
    const show = (text) => {
      if (status) {
        status.dataset.liveStatus = text;
        status.title = text === "live" ? "This page updates itself" : "Waiting for the server; refreshed every 20 s";
      }
    };
    source.onopen = () => show("live");
    source.onerror = () => show("waiting");
    source.onmessage = (message) => {
      for (const topic of JSON.parse(message.data)) document.body.dispatchEvent(new CustomEvent(`live:${topic}`));
    };
    window.addEventListener("pagehide", () => source.close());
  };

  document.addEventListener("DOMContentLoaded", () => {
    showTheme();
    toEnd();
    listen();
  });
})();
