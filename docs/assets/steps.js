// Pictures inside <div class="steps"> one at a time, with buttons; without this script all of them, one under the other.
document.addEventListener("DOMContentLoaded", () => {
  for (const steps of document.querySelectorAll(".steps")) {
    const pictures = [...steps.children]
    let at = 0
    const show = next => {
      at = (next + pictures.length) % pictures.length
      pictures.forEach((picture, index) => picture.classList.toggle("shown", index === at))
      count.textContent = `${at + 1} of ${pictures.length}`
    }
    const button = (text, change) => {
      const made = document.createElement("button")
      made.type = "button"
      made.textContent = text
      made.addEventListener("click", () => { stop(); show(at + change) })
      return made
    }
    const count = document.createElement("span")
    const play = document.createElement("button")
    let timer = null
    const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play" }
    play.type = "button"
    play.textContent = "Play"
    play.addEventListener("click", () => {
      if (timer) return stop()
      play.textContent = "Pause"
      timer = setInterval(() => show(at + 1), 1800)
    })
    const buttons = document.createElement("div")
    buttons.className = "steps-buttons"
    buttons.append(button("Back", -1), count, button("Next", 1), play)
    steps.classList.add("stepped")
    steps.before(buttons)
    show(0)
  }
})
