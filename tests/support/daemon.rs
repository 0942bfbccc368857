//! One run of the real service: started as a process, talked to over its socket, ended by a signal.

use std::os::unix::net::UnixListener;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandboxd::client::{Client, ClientError, Failure};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::create_params::CreateParams;
use crate::engine::eventually;
use crate::installation::Installation;

/// Longer than the engine is waited for.
const LONGEST_START: Duration = Duration::from_secs(60);

/// Longer than the grace that the tests configure.
const LONGEST_END: Duration = Duration::from_secs(15);

pub(crate) struct Daemon {
    process: Process,
    client: Client,
    /// After the process: what it still does is done before its containers are removed.
    installation: Installation,
}

impl Daemon {
    /// A service of its own with these settings, ready to be called.
    pub(crate) async fn start(settings: &str) -> Self {
        Installation::new(settings).start().await
    }

    /// Ends as it should, and leaves everything for the next run.
    pub(crate) async fn stop(mut self) -> Installation {
        self.signal(Signal::TERM);
        let status = self.process.ended().await;
        assert!(status.success(), "{status}");
        self.installation
    }

    /// Ends in the middle of whatever it does.
    pub(crate) async fn kill(mut self) -> Installation {
        self.signal(Signal::KILL);
        self.process.ended().await;
        self.installation
    }

    /// Ends by itself.
    pub(crate) async fn ended(mut self) -> (ExitStatus, Installation) {
        let status = self.process.ended().await;
        (status, self.installation)
    }

    /// Ends by itself, or else as it should.
    pub(crate) async fn end(self) -> (ExitStatus, Installation) {
        // Not yet waited for, so the number is still its own.
        let _ = kill_process(self.pid(), Signal::TERM);
        self.ended().await
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    pub(crate) fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Another connection.
    pub(crate) async fn connect(&self) -> Client {
        Client::connect(self.socket()).await.expect("it listens")
    }

    /// As [`Daemon::call`], of a service that may end before it answers: nothing, then.
    pub(crate) async fn try_call(&self, method: &str, params: impl Serialize) -> Option<Result<Value, Failure>> {
        match self.client.call(method, params).await {
            Ok(answer) => Some(Ok(answer)),
            Err(ClientError::Failed(failure)) => Some(Err(failure)),
            Err(ClientError::Disconnected) => None,
            Err(other) => panic!("{method}: {other}"),
        }
    }

    pub(crate) async fn call(&self, method: &str, params: impl Serialize) -> Result<Value, Failure> {
        call(&self.client, method, params).await
    }

    pub(crate) async fn create(&self, params: &CreateParams) -> Result<Value, Failure> {
        self.call("sandbox.create", params).await
    }

    /// A create that succeeds.
    pub(crate) async fn created(&self, params: &CreateParams) -> Value {
        self.create(params).await.unwrap_or_else(|failure| panic!("not created: {failure:?}"))
    }

    /// A create that fails.
    pub(crate) async fn refused(&self, params: &CreateParams) -> Failure {
        self.create(params).await.expect_err("a create that cannot succeed")
    }

    /// A create under way, on a connection of its own.
    pub(crate) async fn creating(&self, params: &CreateParams) -> JoinHandle<Result<Value, Failure>> {
        let (client, params) = (self.connect().await, params.clone());
        tokio::spawn(async move { call(&client, "sandbox.create", params).await })
    }

    pub(crate) async fn get(&self, chat: &CreateParams) -> Result<Value, Failure> {
        self.call("sandbox.get", json!({ "chat_id": chat.chat_id() })).await
    }

    pub(crate) async fn delete(&self, chat: &CreateParams) -> Result<Value, Failure> {
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
    /// Resolves once the service answers.
    pub(crate) async fn start(self) -> Daemon {
        let command = self.sandboxd();
        self.run(command).await
    }

    /// The same with these arguments.
    pub(crate) async fn start_with(self, arguments: &[&str]) -> Daemon {
        let mut command = self.sandboxd();
        command.args(arguments);
        self.run(command).await
    }

    /// The same with a listening socket handed over, as systemd does it.
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
        // It listens before it serves. Any answer will do, and this one takes no engine.
        let answer = tokio::time::timeout(LONGEST_START, call(&client, "", json!({}))).await;
        answer.expect("it serves").expect_err("there is no such method");
        Daemon { process, client, installation: self }
    }
}

/// What the service answers. That it answers nothing is never right.
pub(crate) async fn call(client: &Client, method: &str, params: impl Serialize) -> Result<Value, Failure> {
    match client.call(method, params).await {
        Ok(answer) => Ok(answer),
        Err(ClientError::Failed(failure)) => Err(failure),
        Err(other) => panic!("{method}: {other}"),
    }
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
    /// Lets calls to the engine come to their end, so that none brings a container that nobody removes.
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
