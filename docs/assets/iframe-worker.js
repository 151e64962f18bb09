// A page that was opened from a file may start no workers, and the search is one. Here such a worker lives in a hidden
// frame: what it posts arrives as from a worker, and it is sent what the page posts.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.frame = frame
      this.scope = frame.contentWindow
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.scope.importScripts = (...urls) => Promise.all(urls.map(each => this.load(each)))
      this.loaded = this.load(url)
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        this.frame.contentDocument.body.append(script)
      })
    }

    postMessage(data) {
      this.loaded.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
