// Draws the charts whose data stands on the page, one beside the other. Colours of the ground come from the style sheet.
(() => {
  "use strict";
  const charts = [...document.querySelectorAll("[data-chart]")].map((box) => ({ box, figure: JSON.parse(box.dataset.chart) }));
  const options = { responsive: true, displayModeBar: false, scrollZoom: false };

  const themed = ({ box, figure }) => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line") };
    const layout = {
      ...figure.layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: style.getPropertyValue("--sans"), size: 12, color: colour("--ink-2") },
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line-strong"), font: { color: colour("--ink") }, align: "left" },
      xaxis: { ...figure.layout.xaxis, ...axis },
      yaxis: { ...figure.layout.yaxis, ...axis },
    };
    layout.shapes = figure.layout.shapes.map((shape) => ({ ...shape, line: { ...shape.line, color: colour("--bad") } }));
    if (box.clientWidth < 600) {
      layout.yaxis = { ...layout.yaxis, ticklabelposition: "inside", tickfont: { size: 10 }, automargin: false };
      layout.margin = { ...layout.margin, l: 4, r: 4 };
    }
    return layout;
  };

  const draw = async () => {
    for (const chart of charts) {
      await Plotly.react(chart.box, chart.figure.data, themed(chart), options);
      chart.box.setAttribute("aria-busy", "false");
    }
  };

  document.addEventListener("themechange", draw);
  draw();
})();
