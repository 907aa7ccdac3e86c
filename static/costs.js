// Draws the chart of energy over time. Colours of the ground come from the style sheet, data from the server.
(() => {
  "use strict";
  const chart = document.getElementById("costs");
  if (!chart) return;
  const options = { responsive: true, displayModeBar: false, scrollZoom: false };
  let figure = null;

  const themed = () => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line") };
    return {
      ...figure.layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: style.getPropertyValue("--sans"), size: 12, color: colour("--ink-2") },
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line-strong"), font: { color: colour("--ink") } },
      xaxis: { ...figure.layout.xaxis, ...axis },
      yaxis: { ...figure.layout.yaxis, ...axis },
    };
  };

  const draw = async () => {
    await Plotly.react(chart, figure.data, themed(), options);
    chart.setAttribute("aria-busy", "false");
  };

  const load = async () => {
    try {
      const answer = await fetch(chart.dataset.figure, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      figure = await answer.json();
      await draw();
    } catch (error) {
      chart.textContent = `The chart could not be loaded (${error.message}). Reload the page to try again.`;
    }
  };

  document.addEventListener("themechange", () => figure && draw());
  load();
})();
