//! The end of a start: a request that is answered with the chat's own file.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const PORT: u16 = 8080;

/// The pause between two tries. It is short compared with the fastest start.
const PAUSE: Duration = Duration::from_micros(500);

const LIMIT: Duration = Duration::from_secs(60);

/// Polls until the file is served.
pub(crate) async fn until_served(ip: IpAddr, content: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let began = Instant::now();
    loop {
        match get(SocketAddr::new(ip, PORT)).await {
            Ok(answer) if answer.ends_with(content) => return Ok(()),
            Ok(answer) if began.elapsed() > LIMIT => return Err(format!("{ip} serves {answer:?}").into()),
            Err(error) if began.elapsed() > LIMIT => return Err(error.into()),
            Ok(_) | Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn get(address: SocketAddr) -> io::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    connection.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer)
}
