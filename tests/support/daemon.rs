//! One run of the real service: a process that is called over its socket and ended by a signal.

use std::os::unix::net::UnixListener;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandboxd::client::{Client, ClientError};
use sandboxd_protocol::error::Error;
use sandboxd_protocol::method::Method;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::create_params::CreateParams;
use crate::engine::eventually;
use crate::installation::Installation;

/// Longer than the service waits for the engine.
const LONGEST_START: Duration = Duration::from_secs(60);

/// Longer than the grace period that the tests configure.
const LONGEST_END: Duration = Duration::from_secs(15);

pub(crate) struct Daemon {
    process: Process,
    client: Client,
    /// Dropped after the process: its last operations end before its containers are removed.
    installation: Installation,
}

impl Daemon {
    /// Starts a service with these settings. Returns once the service answers.
    pub(crate) async fn start(settings: &str) -> Self {
        Installation::new(settings).start().await
    }

    /// Stops the service gracefully, and keeps its state for the next run.
    pub(crate) async fn stop(mut self) -> Installation {
        self.signal(Signal::TERM);
        let status = self.process.ended().await;
        assert!(status.success(), "{status}");
        self.installation
    }

    /// Kills the service, and keeps its state for the next run.
    pub(crate) async fn kill(mut self) -> Installation {
        self.signal(Signal::KILL);
        self.process.ended().await;
        self.installation
    }

    /// Waits until the service exits by itself.
    pub(crate) async fn ended(mut self) -> (ExitStatus, Installation) {
        let status = self.process.ended().await;
        (status, self.installation)
    }

    /// Waits until the service exits, by itself or after SIGTERM.
    pub(crate) async fn end(self) -> (ExitStatus, Installation) {
        // The process is not yet reaped, so its pid is still valid.
        let _ = kill_process(self.pid(), Signal::TERM);
        self.ended().await
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    pub(crate) fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Opens another connection.
    pub(crate) async fn connect(&self) -> Client {
        Client::connect(self.socket()).await.expect("it listens")
    }

    /// Like [`Daemon::call`], but returns `None` if the service exits before its answer.
    pub(crate) async fn try_call(&self, method: &str, params: impl Serialize) -> Option<Result<Value, Error>> {
        match self.client.call(named(method), params).await {
            Ok(answer) => Some(Ok(answer)),
            Err(ClientError::Failed(failure)) => Some(Err(failure)),
            Err(ClientError::Disconnected) => None,
            Err(other) => panic!("{method}: {other}"),
        }
    }

    pub(crate) async fn call(&self, method: &str, params: impl Serialize) -> Result<Value, Error> {
        call(&self.client, method, params).await
    }

    pub(crate) async fn create(&self, params: &CreateParams) -> Result<Value, Error> {
        self.call("sandbox.create", params).await
    }

    /// Makes a create that succeeds.
    pub(crate) async fn created(&self, params: &CreateParams) -> Value {
        self.create(params).await.unwrap_or_else(|failure| panic!("not created: {failure:?}"))
    }

    /// Makes a create that fails.
    pub(crate) async fn refused(&self, params: &CreateParams) -> Error {
        self.create(params).await.expect_err("a create that cannot succeed")
    }

    /// Begins a create on a connection of its own.
    pub(crate) async fn creating(&self, params: &CreateParams) -> JoinHandle<Result<Value, Error>> {
        let (client, params) = (self.connect().await, params.clone());
        tokio::spawn(async move { call(&client, "sandbox.create", params).await })
    }

    pub(crate) async fn get(&self, chat: &CreateParams) -> Result<Value, Error> {
        self.call("sandbox.get", json!({ "chat_id": chat.chat_id() })).await
    }

    pub(crate) async fn delete(&self, chat: &CreateParams) -> Result<Value, Error> {
        self.call("sandbox.delete", json!({ "chat_id": chat.chat_id() })).await
    }

    pub(crate) async fn list(&self) -> Vec<Value> {
        let page = self.call("sandbox.list", json!({})).await.expect("a list");
        page["sandboxes"].as_array().expect("an array").clone()
    }
}

impl std::ops::Deref for Daemon {
    type Target = Installation;

    fn deref(&self) -> &Installation {
        &self.installation
    }
}

impl Installation {
    /// Starts the service. Returns once it answers.
    pub(crate) async fn start(self) -> Daemon {
        let command = self.sandboxd();
        self.run(command).await
    }

    /// Like [`Installation::start`], with these arguments.
    pub(crate) async fn start_with(self, arguments: &[&str]) -> Daemon {
        let mut command = self.sandboxd();
        command.args(arguments);
        self.run(command).await
    }

    /// Like [`Installation::start`], with a listening socket passed on as systemd does.
    pub(crate) async fn start_on(self, listener: &UnixListener) -> Daemon {
        let command = self.activated(listener);
        self.run(command).await
    }

    pub(crate) async fn run(self, mut command: Command) -> Daemon {
        let mut process = Process(command.spawn().expect("it can be run"));
        let client = eventually("the service listens", || {
            let exit = process.0.try_wait().expect("a child");
            assert!(exit.is_none(), "{exit:?}");
            async { Client::connect(self.socket()).await.ok() }
        })
        .await;
        // The socket exists before the service serves. Any answer is enough; this request needs no engine.
        let answer = tokio::time::timeout(LONGEST_START, call(&client, "sandbox.get", json!({}))).await;
        answer.expect("it serves").expect_err("the chat is missing");
        Daemon { process, client, installation: self }
    }
}

/// Calls a method. Panics if the connection ends without an answer.
pub(crate) async fn call(client: &Client, method: &str, params: impl Serialize) -> Result<Value, Error> {
    match client.call(named(method), params).await {
        Ok(answer) => Ok(answer),
        Err(ClientError::Failed(failure)) => Err(failure),
        Err(other) => panic!("{method}: {other}"),
    }
}

fn named(method: &str) -> Method {
    Method::from_name(method).unwrap_or_else(|| panic!("no method {method}"))
}

struct Process(Child);

impl Process {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    async fn ended(&mut self) -> ExitStatus {
        let mut exit = || self.0.try_wait().expect("a child");
        eventually("the service ends", || std::future::ready(exit())).await
    }
}

impl Drop for Process {
    /// Lets engine calls in flight end, so that none leaves a container behind.
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        let pid = self.pid();
        let _ = kill_process(pid, Signal::TERM);
        std::thread::scope(|scope| {
            let (ended, end) = mpsc::channel();
            scope.spawn(move || {
                let _ = self.0.wait();
                let _ = ended.send(());
            });
            if end.recv_timeout(LONGEST_END).is_err() {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
    }
}
