// Lets Plotly work under a policy without inline styles: what it writes into style attributes is set as style properties instead,
// which the policy allows, for no text of others becomes a style that way.
(() => {
  "use strict";
  const setAttribute = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style" && this.style) this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };
})();
