// Says on the login page what was wrong. Everything else there works without JavaScript.
const error = new URLSearchParams(location.search).get("error");
if (error !== null) {
  const words = document.getElementById("wrong");
  if (error === "2") words.textContent = "That link is no longer good: each works once. Give the token, or print another.";
  words.hidden = false;
  document.getElementById("token").setAttribute("aria-describedby", "wrong");
}
