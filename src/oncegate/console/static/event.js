// The Event screen: counts down to the end of the lease. The time that is left comes from the service, because the clock
// of the browser may be wrong.

const began = performance.now();

for (const timer of document.querySelectorAll("[data-countdown]")) {
  const left = Number(timer.dataset.countdown);
  const update = () => {
    const seconds = Math.ceil((left - (performance.now() - began)) / 1000);
    timer.textContent = seconds > 0 ? `in ${seconds} s` : "over";
    if (seconds <= 0) {
      clearInterval(ticking);
    }
  };
  const ticking = setInterval(update, 1000);
  update();
}
