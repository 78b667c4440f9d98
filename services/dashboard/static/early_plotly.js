// plotly.js is by far the largest file: where there will be charts it is fetched before anything else,
// while the modules come and the server looks up the run. plotting.js takes it from here.

if (location.pathname !== "/") {
  const script = document.createElement("script");
  script.id = "plotly";
  script.src = "/static/plotly.min.js";
  script.async = true;
  document.head.append(script);
}
