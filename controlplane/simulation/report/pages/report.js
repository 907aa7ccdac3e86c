// Draws the report's charts in the colours of the page, again when those change. One timeline is drawn at a time.
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const options = { responsive: true, displayModeBar: false, scrollZoom: false };
  const choice = document.getElementById("timeline-choice");
  const timeline = document.getElementById("timeline");

  const themed = (layout, width) => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line") };
    const result = {
      hovermode: "closest",
      legend: { orientation: "h", y: -0.25 },
      margin: { l: 55, r: 15, t: 10, b: 45 },
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: style.getPropertyValue("--sans"), size: 12, color: colour("--ink-2") },
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line"), font: { color: colour("--ink") }, align: "left" },
      xaxis: { ...layout.xaxis, ...axis },
      yaxis: { ...layout.yaxis, ...axis },
    };
    if (width < 600 && layout.yaxis && layout.yaxis.type === "category") {
      // On a phone the lanes' names stand inside the plot, where they leave room for time.
      result.yaxis = { ...result.yaxis, ticklabelposition: "inside", tickfont: { size: 9, color: colour("--ink-2") }, automargin: false };
      result.margin = { ...result.margin, l: 5, r: 5 };
    }
    return result;
  };

  const draw = (element, figure) => Plotly.react(element, figure.data, themed(figure.layout, element.clientWidth), options);

  const drawTimeline = () => {
    if (!timeline) return;
    const id = choice.value;
    document.getElementById("timeline-note").textContent = figures[id].note;
    draw(timeline, figures[id].figure);
  };

  const drawAll = () => {
    for (const element of document.querySelectorAll(".chart[data-figure]")) draw(element, figures[element.dataset.figure].figure);
    drawTimeline();
  };

  if (choice) choice.addEventListener("change", drawTimeline);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
