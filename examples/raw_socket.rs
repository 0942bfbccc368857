//! A client of sandboxd over the raw socket: one connection, one request at a time.
//!
//! ```sh
//! cargo run --example raw_socket
//! ```
//!
//! The socket is `$SANDBOXD_SOCKET`, or the default one.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

/// One connection to the service.
struct Connection {
    lines: BufReader<UnixStream>,
    last_id: u64,
}

impl Connection {
    fn open(path: &str) -> Result<Self, Box<dyn Error>> {
        Ok(Self { lines: BufReader::new(UnixStream::connect(path)?), last_id: 0 })
    }

    /// Sends a request, passes its notifications to `notify`, and returns its result.
    fn call(&mut self, method: &str, params: &Value, notify: impl Fn(&Value)) -> Result<Value, Box<dyn Error>> {
        self.last_id += 1;
        let request = json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params });
        writeln!(self.lines.get_mut(), "{request}")?;
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line)? == 0 {
                return Err("the service closed the connection".into());
            }
            let message: Value = serde_json::from_str(&line)?;
            if message.get("method").is_some() {
                notify(&message);
            } else if let Some(error) = message.get("error") {
                return Err(error.to_string().into());
            } else {
                return Ok(message["result"].clone());
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::var("SANDBOXD_SOCKET").unwrap_or_else(|_| "/run/sandboxd/sandboxd.sock".to_owned());
    let mut service = Connection::open(&path)?;
    let ignore = |_: &Value| {};
    let chat = uuid::Uuid::new_v4().to_string();
    let sandbox = service.call("sandbox.create", &json!({ "chat_id": chat, "agent_id": "coder" }), ignore)?;
    println!("{} {}", sandbox["outcome"].as_str().unwrap_or("?"), sandbox["status"].as_str().unwrap_or("?"));

    let print_output = |message: &Value| {
        if message["method"] == "sandbox.output" {
            let params = &message["params"];
            println!("{} {}", params["stream"].as_str().unwrap_or("?"), params["text"].as_str().unwrap_or("").trim());
        }
    };
    let command = json!({ "chat_id": chat, "command": "for i in 1 2 3; do echo $i; sleep 0.1; done", "stream": true });
    let ended = service.call("sandbox.exec", &command, print_output)?;
    println!("exit code {}", ended["exit_code"]);
    service.call("sandbox.delete", &json!({ "chat_id": chat }), ignore)?;
    Ok(())
}
