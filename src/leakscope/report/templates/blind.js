// Forced choices, saved to a file; nothing leaves the page.
const answers = new Map();
const trials = document.querySelectorAll("fieldset");
const save = document.getElementById("save");
const count = document.getElementById("count");
document.addEventListener("change", (event) => {
  answers.set(Number(event.target.name), event.target.value);
  count.textContent = `${answers.size} of ${trials.length} chosen`;
  save.disabled = answers.size < trials.length;
});
save.addEventListener("click", () => {
  const rows = [...answers].map(([trial, choice]) => ({ trial, choice }));
  const file = new Blob([JSON.stringify({ answers: rows }, null, 1)], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = "answers.json";
  link.click();
});
