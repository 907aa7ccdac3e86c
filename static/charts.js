// What all charts of the pages share: colours of the ground come from the style sheet, and a phone's width is made the most of.
(() => {
  "use strict";
  const PHONE_LANE_PX = 50;
  const options = { responsive: true, displayModeBar: false, scrollZoom: false };

  const themed = (layout, width, hasLanes) => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line") };
    const result = {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: style.getPropertyValue("--sans"), size: 12, color: colour("--ink-2") },
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line-strong"), font: { color: colour("--ink") }, align: "left" },
      xaxis: { ...layout.xaxis, ...axis },
      yaxis: { ...layout.yaxis, ...axis },
    };
    if (layout.shapes) result.shapes = layout.shapes.map((shape) => ({ ...shape, line: { ...shape.line, color: colour("--bad") } }));
    if (hasLanes && width < 600) {
      // On a phone the lanes' names stand inside the plot, above their bars, where they leave room for time; lanes are taller for it.
      const tickfont = { size: 10, color: colour("--ink-2") };
      const lanes = layout.yaxis.tickvals?.length ?? layout.yaxis.categoryarray?.length ?? 1;
      const range = [layout.yaxis.range[0], layout.yaxis.range[1] + 0.3];
      result.yaxis = { ...result.yaxis, range, ticklabelposition: "inside", ticklabelshift: -PHONE_LANE_PX / 2, tickfont, automargin: false };
      result.height = 110 + PHONE_LANE_PX * Math.max(1, lanes);
      result.margin = { ...layout.margin, l: 4, r: 4 };
    }
    return result;
  };

  // Draws the figure into the box, or anew where it stands there; `hasLanes`: its rows have names.
  window.drawChart = async (box, figure, { hasLanes = false } = {}) => {
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
    // The ground shows through hatched bars: their names need its contrast.
    const data = figure.data.map((of) => (of.marker?.pattern ? { ...of, insidetextfont: { color: ink } } : of));
    await Plotly.react(box, data, themed(figure.layout, box.clientWidth, hasLanes), options);
    box.setAttribute("aria-busy", "false");
  };
})();
